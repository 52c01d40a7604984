// The one line in which a command says why it failed, or what it does otherwise than asked.
#pragma once

#include <string>

namespace ringmark::cluster {

// Prints `ringmark: TEXT` on stderr. One line whatever the text quotes: a control character in a file name or a value
// becomes '?'.
void print_error(std::string text);

}  // namespace ringmark::cluster
