set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
set ylabel 'seconds'
set yrange [0:*]
set xlabel 'nodes'
set style data histogram
set style histogram rowstacked
set style fill solid 0.9 noborder
set boxwidth 0.72
set key invert
$stages << END
"1\nsparse" 0 0.0126596 0.000584425 3.4163e-05 0.0354969 0.0426832 0.121143
"2\nsparse" 0 0.0215707 0.00173706 0.0379479 0.0535267 0.0522257 0.121374
"4\nsparse" 0 0.0171954 0.00376436 0.0962716 0.039029 0.0944857 0.131131
"8\nsparse" 0 0.0266768 0.00757025 0.138085 0.0397879 0.0922379 0.168033
""              
"1\nring" 0.0112022 0 0 0 0 0 1.25622
"2\nring" 0.0135003 0 0 1.7545e-05 0 0 1.11525
"4\nring" 0.0111835 0 0 0.27032 0 0 0.96885
"8\nring" 0.0216729 0 0 0.403883 0 0 1.15684
END
plot $stages using 2:xtic(1) linecolor rgb '#0072b2' title "store", \
     $stages using 3:xtic(1) linecolor rgb '#d55e00' title "landmarks", \
     $stages using 4:xtic(1) linecolor rgb '#009e73' title "plan", \
     $stages using 5:xtic(1) linecolor rgb '#cc79a7' title "fetch", \
     $stages using 6:xtic(1) linecolor rgb '#56b4e9' title "window", \
     $stages using 7:xtic(1) linecolor rgb '#e69f00' title "select", \
     $stages using 8:xtic(1) linecolor rgb '#f0e442' title "attend"

set terminal svg size 720,420 enhanced background rgb 'white' font 'Helvetica,13'
set output 'stages-strong.svg'
replot
set terminal pngcairo size 1440,840 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'stages-strong.png'
replot
unset output
