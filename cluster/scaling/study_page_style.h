// How the page of a study looks, on screen and on paper.
#pragma once

namespace ringmark::cluster {

inline constexpr char kPageStyle[] = R"(
body{margin:0;background:#fff;color:#1a1a1a;font:16px/1.5 system-ui,"Helvetica Neue",Arial,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .75rem}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid #ccc;padding-top:1rem}
#answer{font-size:1.125rem;max-width:48rem}
.note{border-left:4px solid #e69f00;padding:.25rem 0 .25rem .75rem;max-width:48rem}
.wide{overflow-x:auto;margin:1.25rem 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;color:#444;padding-bottom:.35rem}
th,td{padding:.25rem .5rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
thead th{border-bottom:2px solid #444;vertical-align:bottom}
.n{text-align:right;white-space:nowrap}
.bad{color:#a00000}
figure{margin:1.75rem 0;break-inside:avoid}
figure svg{width:100%;height:auto;max-width:48rem;display:block}
figcaption{font-size:.9rem;color:#333;max-width:48rem;margin-bottom:.5rem}
figcaption strong{color:#1a1a1a;font-size:1rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;font-size:.9rem}
dt{color:#444}dd{margin:0;overflow-wrap:anywhere}
details ul{margin:.25rem 0;padding-left:1.1rem;overflow-wrap:anywhere}
code{font-size:.95em}
)";

}  // namespace ringmark::cluster
