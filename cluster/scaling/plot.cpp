#include "cluster/scaling/plot.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "cluster/options/text_file.h"
#include "cluster/scaling/file_text.h"
#include "cluster/scaling/html_text.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr int kWidth = 720;
constexpr double kLimitSeconds = 120;

// The same figure for the page and for slides: bitmaps are twice as large.
std::string terminals(const Plot& plot, const std::string& base) {
  const std::string font = "font 'Helvetica,13'";
  return fmt::format(
      "{4}\n"
      "set terminal svg size {0},{1} enhanced background rgb 'white' {2}\n"
      "set output '{3}.svg'\n"
      "replot\n"
      "set terminal pngcairo size {5},{6} enhanced background rgb 'white' {2} fontscale 2 linewidth 2 pointscale 2\n"
      "set output '{3}.png'\n"
      "replot\n"
      "unset output\n",
      kWidth, plot.height, font, base, plot.script, 2 * kWidth, 2 * plot.height);
}

void replace_all(std::string& text, std::string_view from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

void check_gnuplot() {
  if (output_of("gnuplot --version").empty()) {
    fail_environment("no gnuplot, which draws the plots: apt-get install gnuplot-nox, or report --no-plots");
  }
}

std::string draw(const Plot& plot, const std::string& folder, const StopSignals& signals) {
  const std::string base = fmt::format("{}/{}", folder, plot.name);
  // Paths stand in the script between single quotes; a folder with one in its name is entered by none.
  const std::string script = fmt::format("set terminal unknown\n{}", terminals(plot, plot.name));
  write_text_file(base + ".gp", script);
  const std::vector<std::string> command = {"gnuplot", "-e", fmt::format("cd \"{}\"", folder), base + ".gp"};
  const std::string log = base + ".log";
  const ProgramEnd end = run_program(command, {log + ".out", log}, kLimitSeconds, signals);
  const std::string said = file_text(log);
  std::filesystem::remove(log);
  std::filesystem::remove(log + ".out");
  if (end.how == ProgramEnd::How::kStopped) throw Error(ExitCode::kRequeue, "told to stop while plots were drawn");
  if (end.how != ProgramEnd::How::kExit || end.code != 0) {
    throw Error(ExitCode::kInternal, fmt::format("gnuplot refuses {}.gp: {}", base, said));
  }
  return file_text(base + ".svg");
}

std::string inline_svg(std::string svg, const std::string& name, const std::string& alt) {
  svg.erase(0, svg.find("<svg"));
  replace_all(svg, "id='", fmt::format("id='{}-", name));
  replace_all(svg, "id=\"", fmt::format("id=\"{}-", name));
  replace_all(svg, "href='#", fmt::format("href='#{}-", name));
  replace_all(svg, "url(#", fmt::format("url(#{}-", name));
  const std::size_t title = svg.find("<title>");
  const std::size_t title_end = svg.find("</title>");
  if (title != std::string::npos && title_end != std::string::npos) {
    svg.replace(title, title_end - title, "<title>" + html_text(alt));
  }
  svg.insert(4, " role=\"img\" aria-label=\"" + html_text(alt) + "\"");
  return svg;
}

}  // namespace ringmark::cluster
