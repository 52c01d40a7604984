// One figure of a report: a gnuplot script with its data in it.
#pragma once

#include <string>

#include "cluster/scaling/launched_program.h"

namespace ringmark::cluster {

struct Plot {
  std::string name;     // of its files
  std::string title;    // heading of the figure
  std::string caption;  // what is to be seen, and how it was measured
  std::string alt;      // the figure in words, with its figures
  std::string script;   // without terminal and output
  int height = 420;     // of a width of 720
};

// Throws Error(kEnvironment) with the package to install when there is no gnuplot.
void check_gnuplot();

// Writes FOLDER/NAME.gp, .svg and .png, and returns the SVG. Throws Error(kInternal) with gnuplot's words when the
// script is refused.
std::string draw(const Plot& plot, const std::string& folder, const StopSignals& signals);

// To stand in a page beside others: no XML heading, and ids that begin with `name`.
std::string inline_svg(std::string svg, const std::string& name, const std::string& alt);

}  // namespace ringmark::cluster
