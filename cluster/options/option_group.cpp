#include "cluster/options/option_group.h"

#include <boost/program_options/value_semantic.hpp>

namespace ringmark::cluster {

namespace po = boost::program_options;

OptionGroup& OptionGroup::add(const char* name, const char* unit, const std::string& text) {
  options_.add_options()(name, po::value<std::string>()->value_name(unit), text.c_str());
  return *this;
}

OptionGroup& OptionGroup::add_switch(const char* name, const std::string& text) {
  options_.add_options()(name, po::bool_switch(), text.c_str());
  return *this;
}

}  // namespace ringmark::cluster
