#include "cluster/scaling/study.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster/scaling/arm.h"
#include "cluster/scaling/failure_cause.h"
#include "cluster/scaling/point_result.h"
#include "cluster/scaling/rank_timeline.h"
#include "cluster/scaling/study_results.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

Study small_study() {
  Study study;
  study.nodes = {2, 4};
  study.modes = {ScalingMode::kStrong, ScalingMode::kWeak};
  study.tokens = 1000;
  study.arms = {"sparse", "ring"};
  return study;
}

RunRecord run_of(double seconds, const std::string& digest) {
  RunRecord run;
  run.seconds = {{"load", 1}, {"attend", seconds}, {"write", 0.5}, {"total", seconds + 1.5}};
  run.bytes_moved = 10;
  run.bytes_ring = 40;
  run.selection_digest = digest;
  return run;
}

PointResult done_point(int index, int nodes, double seconds, const std::string& digest) {
  PointResult result;
  result.point = {index, ScalingMode::kStrong, "sparse", nodes, 1000};
  result.runs = {run_of(seconds, digest)};
  result.environment = nlohmann::ordered_json::object();
  return result;
}

TEST(ScalingStudy, points_by_mode_then_nodes_then_arm) {
  const auto points = small_study().points();
  ASSERT_EQ(points.size(), 8U);
  EXPECT_EQ(points[3].arm, "ring");
  EXPECT_EQ(points[3].nodes, 4);
  EXPECT_EQ(points[3].tokens, 1000);
  EXPECT_EQ(points[6].tokens, 2000);  // weak: twice the nodes
  EXPECT_EQ(points[6].index, 6);
}

TEST(ScalingStudy, what_was_written_is_read) {
  const std::string text = study_json(small_study()).dump();
  EXPECT_EQ(study_json(parse_study(text, "here")).dump(), text);
  EXPECT_THROW(parse_study("{}", "here"), Error);
  EXPECT_THROW(parse_study(text.substr(0, text.size() / 2), "here"), Error);
}

TEST(ScalingStudy, arms_take_the_options_that_they_understand) {
  const std::vector<std::string> shared = {"--topk", "8", "--heads=4", "--transport", "rma"};
  EXPECT_EQ(arm_options("sparse", shared),
            (std::vector<std::string>{"--policy", "hils", "--topk", "8", "--heads=4", "--transport", "rma"}));
  EXPECT_EQ(arm_options("ring", shared),
            (std::vector<std::string>{"--policy", "dense", "--merge", "ring", "--heads=4"}));
  EXPECT_THROW(check_arm("rnig"), Error);
  EXPECT_THROW(check_shared_options({"--planted", "4"}), Error);
  EXPECT_THROW(check_shared_options({"4"}), Error);
}

TEST(PointResult, what_was_written_is_read) {
  PointResult result = done_point(3, 4, 2, "abc");
  const std::string text = result_json(result).dump();
  EXPECT_EQ(result_json(parse_result(text, "here")).dump(), text);
  EXPECT_DOUBLE_EQ(parse_result(text, "here").seconds().p50, 2);  // without load and write
  result.failure = PointFailure{"signal", "rank 1 was killed", 2, std::nullopt, 9, {"a", "b"}};
  const std::string failed = result_json(result).dump();
  EXPECT_EQ(result_json(parse_result(failed, "here")).dump(), failed);
}

TEST(PointResult, malformed_results_are_refused) {
  const std::string good = result_json(done_point(3, 4, 2, "abc")).dump();
  for (std::size_t cut = 1; cut < good.size(); cut += 7) EXPECT_THROW(parse_result(good.substr(0, cut), "here"), Error);
  EXPECT_THROW(parse_result(result_json(done_point(3, 4, -5, "")).dump(), "here"), Error);
  EXPECT_THROW(parse_report("{\"seconds\":3}", "here"), Error);
}

TEST(PointResult, a_report_counts_all_bytes_that_were_received) {
  const RunRecord run = parse_report(
      R"({"seconds":{"total":1},"bytes_fetched":5,"bytes_merged":7,"bytes_ring":99,"bytes_ratio":0.1,
          "peak_memory_bytes":1,"needles_planted":2,"needles_recovered":2})",
      "here");
  EXPECT_EQ(run.bytes_moved, 12);
  EXPECT_EQ(run.bytes_ring, 99);
}

TEST(StudyResults, one_digest_whatever_the_nodes) {
  EXPECT_TRUE(find_disagreements({done_point(0, 1, 2, "abc"), done_point(1, 2, 1, "abc")}).empty());
  EXPECT_EQ(find_disagreements({done_point(0, 1, 2, "abc"), done_point(1, 2, 1, "abd")}).size(), 1U);
}

TEST(StudyResults, a_regression_is_more_than_the_tolerance) {
  const std::vector<PointResult> before = {done_point(0, 1, 2, "abc")};
  EXPECT_TRUE(find_regressions({done_point(0, 1, 2.19, "abc")}, before, 0.1).empty());
  EXPECT_EQ(find_regressions({done_point(0, 1, 2.21, "abc")}, before, 0.1).size(), 1U);
  EXPECT_EQ(find_regressions({done_point(0, 1, 2, "other")}, before, 0.1).size(), 1U);
  EXPECT_THROW(find_regressions({done_point(0, 8, 2, "abc")}, before, 0.1), Error);
}

TEST(FailureCause, launchers_say_who_died) {
  const auto lines = telling_lines("noise\nsrun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Terminated\n");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(line_of_death(lines).value(), "srun: error: n2: task 1: Killed");
  EXPECT_FALSE(line_of_death({"ringmark: rank 0: no memory"}));
}

TEST(RankTimeline, spans_of_one_rank_from_its_first_stage_on) {
  const auto spans = parse_timeline(R"({"traceEvents":[
      {"name":"load","ph":"X","pid":0,"tid":0,"ts":0,"dur":5},
      {"name":"select","ph":"X","pid":0,"tid":0,"ts":3000000,"dur":1000000},
      {"name":"window","ph":"X","pid":0,"tid":0,"ts":2000000,"dur":1000000},
      {"name":"window","ph":"X","pid":1,"tid":0,"ts":1000000,"dur":1000000},
      {"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"host"}}]})",
                                    "here", 0);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].stage, "select");
  EXPECT_EQ(spans[1].lane, "host");
  EXPECT_DOUBLE_EQ(spans[1].start, 1);
}

}  // namespace
}  // namespace ringmark::cluster
