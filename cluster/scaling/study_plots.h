// The figures of a study, as gnuplot scripts.
#pragma once

#include <vector>

#include "cluster/scaling/plot.h"
#include "cluster/scaling/rank_timeline.h"
#include "cluster/scaling/scaling_table.h"

namespace ringmark::cluster {

// Of one mode: time, efficiency, bytes, stages. Of done points only; none where nothing is done.
std::vector<Plot> mode_plots(const StudyResults& results, const std::vector<ScalingRow>& rows, ScalingMode mode);

// Time and bytes of the arms over those of the ring; none without comparisons.
std::vector<Plot> comparison_plots(const std::vector<ArmComparison>& comparisons);

struct ArmTimeline {
  StudyPoint point;
  std::vector<TimelineSpan> spans;
};

// Of rank 0, arm below arm on one axis of time; none without spans.
std::vector<Plot> timeline_plots(const std::vector<ArmTimeline>& timelines);

}  // namespace ringmark::cluster
