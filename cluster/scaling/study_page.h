// The report of a study: one HTML page that needs nothing beside it, neither network nor scripts.
#pragma once

#include <string>
#include <vector>

#include "cluster/scaling/plot.h"
#include "cluster/scaling/scaling_table.h"

namespace ringmark::cluster {

struct DrawnPlot {
  Plot plot;
  std::string svg;  // ready to stand in the page
};

struct PageTexts {
  std::string title;
  std::string note;  // of whoever ran it: what a reader must know of the machine; may be empty
};

std::string study_page(const StudyResults& results, const std::vector<ScalingRow>& rows,
                       const std::vector<ArmComparison>& comparisons, const std::vector<DrawnPlot>& plots,
                       const PageTexts& texts);

// The study in a sentence or two, from its figures.
std::string answer_of(const StudyResults& results, const std::vector<ScalingRow>& rows,
                      const std::vector<ArmComparison>& comparisons);

}  // namespace ringmark::cluster
