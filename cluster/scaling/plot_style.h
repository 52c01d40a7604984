// Colours and words that all figures of a report share.
#pragma once

#include <string>

namespace ringmark::cluster {

// Of Okabe and Ito (Color Universal Design, 2008): told apart by readers who see fewer colours, too. The same index is
// the same arm or stage in all figures of a report; dashes and points differ as well.
std::string colour(std::size_t index);

// "1 node", "8 nodes".
std::string nodes_text(int nodes);

// In a gnuplot string between double quotes with `enhanced` text.
std::string gnuplot_text(const std::string& text);

// Where and how all figures draw their axes.
std::string frame_script();

}  // namespace ringmark::cluster
