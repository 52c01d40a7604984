#include "cluster/scaling/plot_style.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace ringmark::cluster {

std::string colour(std::size_t index) {
  constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#56b4e9", "#e69f00", "#f0e442", "#000000"};
  return kColours[index % kColours.size()];
}

std::string nodes_text(int nodes) { return fmt::format("{} node{}", nodes, nodes == 1 ? "" : "s"); }

std::string gnuplot_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("_^{}@&~").find(c) != std::string_view::npos) {
      escaped += "\\\\";
    } else if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

std::string frame_script() {
  return "set border 3 linecolor rgb '#555555'\n"
         "set tics nomirror out textcolor rgb '#222222'\n"
         "set grid ytics linecolor rgb '#dddddd' linetype 1 linewidth 0.6\n"
         "set key outside right center vertical Left reverse samplen 2.5 spacing 1.2\n";
}

}  // namespace ringmark::cluster
