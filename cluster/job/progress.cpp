#include "cluster/job/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace ringmark::cluster {
namespace {

constexpr double kFirstBarSeconds = 0.2;  // shorter stages would only flicker
constexpr double kBarSeconds = 0.1;
constexpr double kLineSeconds = 10;
constexpr int kMaxCells = 40;
constexpr int kMinCells = 8;
constexpr std::string_view kClearLine = "\r\x1b[K";

bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void write_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

Progress::Screen stderr_screen(int rank, bool quiet) {
  using Form = Progress::Screen::Form;
  Progress::Screen screen;
  if (rank != 0 || quiet) return screen;
  const char* const terminal = std::getenv("TERM");
  const bool moves_cursor = terminal != nullptr && std::string_view(terminal) != "dumb" && *terminal != '\0';
  screen.form = moves_cursor && ::isatty(STDERR_FILENO) == 1 ? Form::kBar : Form::kLines;
  screen.colour = screen.form == Form::kBar && !is_set("NO_COLOR");
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) screen.width = size.ws_col;
  return screen;
}

Progress::Progress(int rank, bool quiet) : Progress(stderr_screen(rank, quiet), write_stderr, steady_seconds) {}

Progress::Progress(Screen screen, Write write, Seconds now)
    : screen_(screen), write_(std::move(write)), now_(std::move(now)), next_(now_() + kLineSeconds) {}

Progress::~Progress() {
  if (drawn_ && screen_.form == Screen::Form::kBar) write_(kClearLine);
}

void Progress::begin(std::string_view stage, std::int64_t total) {
  end();
  stage_ = stage;
  total_ = total;
  done_ = 0;
  began_ = now_();
  // Lines keep one rhythm over all stages: many short stages are still one line every ten seconds.
  if (screen_.form == Screen::Form::kBar) next_ = began_ + kFirstBarSeconds;
}

void Progress::advance(std::int64_t done) {
  done_ = done;
  if (screen_.form == Screen::Form::kSilent || stage_.empty()) return;
  const double now = now_();
  if (now < next_) return;
  const bool draws_bar = screen_.form == Screen::Form::kBar;
  next_ = now + (draws_bar ? kBarSeconds : kLineSeconds);
  drawn_ = true;
  write_(draws_bar ? bar(now - began_) : line(now - began_));
}

void Progress::end() {
  if (drawn_) {
    const bool clears = screen_.form == Screen::Form::kBar;
    write_(clears ? std::string(kClearLine) : fmt::format("{}: done in {:.0f} s\n", stage_, now_() - began_));
  }
  drawn_ = false;
  stage_.clear();
}

int Progress::percent() const {
  if (total_ <= 0) return 100;
  return static_cast<int>(100 * static_cast<double>(std::clamp<std::int64_t>(done_, 0, total_)) /
                          static_cast<double>(total_));
}

std::string Progress::line(double elapsed) const {
  return fmt::format("{}: {}% ({} of {}), {:.0f} s\n", stage_, percent(), done_, total_, elapsed);
}

std::string Progress::bar(double elapsed) const {
  const std::string left = fmt::format("{:<10} ", stage_);
  const std::string right = fmt::format(" {:>3}%  {}/{}  {:.0f} s", percent(), done_, total_, elapsed);
  // The last column stays free: some terminals wrap when it is written.
  const auto columns = static_cast<std::size_t>(std::max(screen_.width - 1, 1));
  const int cells = std::min(kMaxCells, static_cast<int>(columns) - static_cast<int>(left.size() + right.size()) - 2);
  if (cells < kMinCells) return std::string(kClearLine) + fmt::format("{} {}%", stage_, percent()).substr(0, columns);
  const auto full = static_cast<std::size_t>(cells * percent() / 100);
  std::string filled(full, '#');
  if (screen_.colour) filled = "\x1b[32m" + filled + "\x1b[0m";
  return fmt::format("{}{}[{}{}]{}", kClearLine, left, filled, std::string(static_cast<std::size_t>(cells) - full, '.'),
                     right);
}

}  // namespace ringmark::cluster
