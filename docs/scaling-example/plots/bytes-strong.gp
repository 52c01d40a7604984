set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
set ylabel 'MiB'
set yrange [0:*]
set offsets 0, 0, graph 0.08, 0
set style data histogram
set style histogram clustered gap 1.2
set style fill solid 0.85 noborder
set boxwidth 0.95
set xlabel 'nodes, 1 rank each'
$bytes << END
"1" 0 0
"2" 9.70703 12
"4" 26.8086 36
"8" 53.5117 84
END
$ring << END
0 0 0.42
1 16 0.42
2 48 0.42
3 112 0.42
END
plot $bytes using 2:xtic(1) linecolor rgb '#0072b2' title "sparse", \
     $bytes using 3:xtic(1) linecolor rgb '#d55e00' title "ring", \
     $ring using 1:2:3 with xerrorbars pointtype 0 linewidth 2 linecolor rgb '#000000' title 'all K and V'

set terminal svg size 720,420 enhanced background rgb 'white' font 'Helvetica,13'
set output 'bytes-strong.svg'
replot
set terminal pngcairo size 1440,840 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'bytes-strong.png'
replot
unset output
