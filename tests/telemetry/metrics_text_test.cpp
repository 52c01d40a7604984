#include "cluster/telemetry/metrics_text.h"

#include <gtest/gtest.h>

namespace ringmark::cluster {
namespace {

TEST(MetricsText, is_what_the_textfile_collector_reads) {
  RunMetrics run;
  run.rank = 3;
  run.command = "prefill";
  run.policy = "hils";
  run.stages = {{"attend", "host", 1.5, 4096, 2}};
  run.progress = {{"attend", 30, 40}, {"select", 7, 0}};
  run.wait_seconds = 0.25;
  const std::string text = metrics_text(run);
  const std::string labels = R"({rank="3",command="prefill",policy="hils")";
  for (const std::string& line :
       {"# HELP ringmark_up 1 while the rank runs, 0 when it has ended.\n# TYPE ringmark_up gauge\nringmark_up" +
            labels + "} 1\n",
        "ringmark_stage_seconds_total" + labels + R"(,stage="attend",lane="host"} 1.5)" + "\n",
        "ringmark_stage_received_bytes_total" + labels + R"(,stage="attend",lane="host"} 4096)" + "\n",
        "ringmark_stage_progress_ratio" + labels + R"(,stage="attend"} 0.75)" + "\n",
        "ringmark_stage_progress_ratio" + labels + R"(,stage="select"} 1)" + "\n",
        "ringmark_stage_rows_done" + labels + R"(,stage="attend"} 30)" + "\n",
        "ringmark_wait_seconds_total" + labels + "} 0.25\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
  }
  EXPECT_EQ(text.find("ringmark_exit_code"), std::string::npos);
}

TEST(MetricsText, a_rank_that_has_ended_is_marked) {
  RunMetrics run;
  run.exit_code = 4;
  run.update_time = 100;
  const std::string text = metrics_text(run);
  EXPECT_NE(text.find("ringmark_up{rank=\"0\",command=\"\",policy=\"\"} 0\n"), std::string::npos);
  EXPECT_NE(text.find("ringmark_exit_code{rank=\"0\",command=\"\",policy=\"\"} 4\n"), std::string::npos);
  EXPECT_NE(text.find("ringmark_end_time_seconds{rank=\"0\",command=\"\",policy=\"\"} 100\n"), std::string::npos);
}

TEST(MetricsText, labels_are_escaped) {
  RunMetrics run;
  run.host = "a\"b\\c";
  EXPECT_NE(metrics_text(run).find(R"(host="a\"b\\c")"), std::string::npos);
}

TEST(MetricsText, files_of_ranks_do_not_collide) {
  EXPECT_EQ(metrics_path("dir/run.prom", 0), "dir/run.rank0.prom");
  EXPECT_EQ(metrics_path("dir/run.prom", 12), "dir/run.rank12.prom");
}

TEST(RunState, adds_up_the_spans_of_a_stage) {
  RunState state;
  StageTotals span;
  EXPECT_TRUE(state.begin("attend"));
  EXPECT_TRUE(state.end("attend", "host", 1, span));
  EXPECT_FALSE(state.begin("attend"));
  EXPECT_FALSE(state.end("attend", "host", 2, span));
  EXPECT_EQ(span.seconds, 2);
  EXPECT_TRUE(state.end("attend", "gpu compute", 5, span));
  ASSERT_EQ(state.totals().size(), 2u);
  EXPECT_EQ(state.totals()[0].seconds, 3);
  EXPECT_EQ(state.totals()[0].spans, 2);
  EXPECT_EQ(state.totals()[1].lane, "gpu compute");
}

}  // namespace
}  // namespace ringmark::cluster
