set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
set xlabel 'nodes'
set logscale x 2
set xtics ('1' 1,'2' 2,'4' 4,'8' 8)
set xrange [0.87:9.2]
set ylabel 'over the ring'
set yrange [0:*]
$arm0 << END
1 0.1679 ?
2 0.23249 0.80892
4 0.32778 0.74468
8 0.33897 0.63704
END
plot 1 with lines dashtype 2 linecolor rgb '#777777' title 'ring', \
     $arm0 using 1:2 with linespoints linewidth 2 pointtype 7 linecolor rgb '#0072b2' title "sparse: time", \
     $arm0 using 1:3 with linespoints linewidth 2 dashtype 4 pointtype 9 linecolor rgb '#d55e00' title "sparse: bytes"

set terminal svg size 720,420 enhanced background rgb 'white' font 'Helvetica,13'
set output 'against-ring-strong.svg'
replot
set terminal pngcairo size 1440,840 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'against-ring-strong.png'
replot
unset output
