set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
set xlabel 'nodes, 1 rank each'
set logscale x 2
set xtics ('1' 1,'2' 2,'4' 4,'8' 8)
set xrange [0.87:9.2]
set ylabel 'efficiency, %'
set yrange [0:*]
$arm0 << END
1 100 0
2 40.7 0
4 16.66 0
8 6.785 0
END
$arm1 << END
1 100 0
2 56.36 0
4 32.53 0
8 13.7 0
END
plot 100 with lines dashtype 2 linecolor rgb '#777777' title 'ideal', \
     $arm0 using 1:2 with linespoints linewidth 2 pointtype 5 pointsize 1 linecolor rgb '#0072b2' title "sparse", \
     $arm1 using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 1 linecolor rgb '#d55e00' title "ring"

set terminal svg size 720,420 enhanced background rgb 'white' font 'Helvetica,13'
set output 'efficiency-strong.svg'
replot
set terminal pngcairo size 1440,840 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'efficiency-strong.png'
replot
unset output
