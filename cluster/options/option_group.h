// Options under one heading of a help text: name, value (a switch without it), description.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <string>

namespace ringmark::cluster {

class OptionGroup {
 public:
  explicit OptionGroup(const char* caption) : options_(caption, kLineWidth, kTextWidth) {}
  OptionGroup& add(const char* name, const char* unit, const std::string& text);
  OptionGroup& add_switch(const char* name, const std::string& text);
  const boost::program_options::options_description& options() const { return options_; }

  static constexpr unsigned kLineWidth = 110;
  static constexpr unsigned kTextWidth = 80;

 private:
  boost::program_options::options_description options_;
};

}  // namespace ringmark::cluster
