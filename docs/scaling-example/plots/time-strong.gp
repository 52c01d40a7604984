set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
set xlabel 'nodes, 1 rank each'
set logscale x 2
set xtics ('1' 1,'2' 2,'4' 4,'8' 8)
set xrange [0.87:9.2]
set ylabel 'seconds'
set logscale y 2
set format y '%g'
set grid xtics
$arm0 << END
1 0.212783 0.212129 0.21885 0.212783
2 0.261397 0.245511 0.292778 0.106392
4 0.319258 0.240168 0.350184 0.0531958
8 0.392015 0.37239 0.412339 0.0265979
END
$arm1 << END
1 1.26732 1.25901 1.32379 1.26732
2 1.12432 0.988291 1.15101 0.633662
4 0.973986 0.930255 1.07571 0.316831
8 1.15648 0.994484 1.25598 0.158415
END
plot $arm0 using 1:5 with lines dashtype 2 linewidth 1.2 linecolor rgb '#0072b2' title "sparse ideal", \
     $arm0 using 1:2:3:4 with yerrorlines linewidth 2 pointtype 5 pointsize 1 linecolor rgb '#0072b2' title "sparse", \
     $arm1 using 1:5 with lines dashtype 2 linewidth 1.2 linecolor rgb '#d55e00' title "ring ideal", \
     $arm1 using 1:2:3:4 with yerrorlines linewidth 2 pointtype 7 pointsize 1 linecolor rgb '#d55e00' title "ring"

set terminal svg size 720,420 enhanced background rgb 'white' font 'Helvetica,13'
set output 'time-strong.svg'
replot
set terminal pngcairo size 1440,840 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'time-strong.png'
replot
unset output
