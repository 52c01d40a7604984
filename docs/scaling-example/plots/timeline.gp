set terminal unknown
set border 3 linecolor rgb '#555555'
set tics nomirror out textcolor rgb '#222222'
set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6
set key outside right center vertical Left reverse samplen 2.5 spacing 1.2
unset grid
set xlabel 'seconds'
set xrange [0:*]
set yrange [-1.6:0.6]
set ytics ("sparse, host" 0,"ring, host" -1)
set style fill solid 0.9 noborder
$stage0 << END
0 -0 0 0.0148348 -0.36 0.36
END
$stage1 << END
0.0238161 -0 0.0238161 0.0239434 -0.36 0.36
0.188476 -0 0.188476 0.189289 -0.36 0.36
END
$stage2 << END
0.0240272 -0 0.0240272 0.0240609 -0.36 0.36
0.0272999 -0 0.0272999 0.0627894 -0.36 0.36
0.215291 -0 0.215291 0.231511 -0.36 0.36
0.273701 -0 0.273701 0.319478 -0.36 0.36
0.0679945 -1 0.0679945 0.137583 -1.36 -0.64
0.163573 -1 0.163573 0.259125 -1.36 -0.64
0.389813 -1 0.389813 0.394034 -1.36 -0.64
0.514103 -1 0.514103 0.514111 -1.36 -0.64
0.644708 -1 0.644708 0.644716 -1.36 -0.64
0.796223 -1 0.796223 0.796229 -1.36 -0.64
0.917713 -1 0.917713 0.917721 -1.36 -0.64
END
$stage3 << END
0.0240771 -0 0.0240771 0.0272692 -0.36 0.36
0.0627944 -0 0.0627944 0.066095 -0.36 0.36
END
$stage4 << END
0.0984931 -0 0.0984931 0.188419 -0.36 0.36
END
$stage5 << END
0.231515 -0 0.231515 0.273641 -0.36 0.36
0.319481 -0 0.319481 0.392697 -0.36 0.36
0.0250854 -1 0.0250854 0.067868 -1.36 -0.64
0.137703 -1 0.137703 0.163566 -1.36 -0.64
0.259206 -1 0.259206 0.389809 -1.36 -0.64
0.394109 -1 0.394109 0.514096 -1.36 -0.64
0.51419 -1 0.51419 0.6447 -1.36 -0.64
0.644809 -1 0.644809 0.796217 -1.36 -0.64
0.796296 -1 0.796296 0.917707 -1.36 -0.64
0.917726 -1 0.917726 0.966788 -1.36 -0.64
END
$stage6 << END
0 -1 0 0.00163378 -1.36 -0.64
END
plot $stage0 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#0072b2' title "landmarks", \
     $stage1 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#d55e00' title "plan", \
     $stage2 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#009e73' title "fetch", \
     $stage3 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#cc79a7' title "window", \
     $stage4 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#56b4e9' title "select", \
     $stage5 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#e69f00' title "attend", \
     $stage6 using 1:2:3:4:5:6 with boxxyerror linecolor rgb '#f0e442' title "store"

set terminal svg size 720,270 enhanced background rgb 'white' font 'Helvetica,13'
set output 'timeline.svg'
replot
set terminal pngcairo size 1440,540 enhanced background rgb 'white' font 'Helvetica,13' fontscale 2 linewidth 2 pointscale 2
set output 'timeline.png'
replot
unset output
