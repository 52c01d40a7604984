#include "cluster/telemetry/event_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "core/error.h"

namespace ringmark::cluster {
namespace {

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() : path_(::testing::TempDir() + "/event_log." + std::to_string(getpid())) {}
  ~EventLogTest() override { std::filesystem::remove(path_); }

  LogTarget target(LogLevel level, LogFormat format = LogFormat::kJson) const {
    return {format, level, path_, 3, "n2"};
  }
  std::vector<std::string> lines() const {
    std::ifstream file(path_);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  std::string path_;
};

TEST_F(EventLogTest, a_line_is_json_with_who_and_when) {
  EventLog log(target(LogLevel::kInfo));
  log.write(LogLevel::kInfo, "stage_end", {{"layer", 0}, {"stage", "at\"tend\n"}, {"seconds", 0.5}});
  // Flushed: the log is still open.
  ASSERT_EQ(lines().size(), 1u);
  const auto line = nlohmann::ordered_json::parse(lines()[0]);
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["host"], "n2");
  EXPECT_EQ(line["pid"], getpid());
  EXPECT_EQ(line["event"], "stage_end");
  EXPECT_EQ(line["stage"], "at\"tend\n");
  const std::string ts = line["ts"];
  ASSERT_EQ(ts.size(), std::string("2026-12-01T01:02:03.123456Z").size());
  EXPECT_EQ(ts[10], 'T');
  EXPECT_EQ(ts.back(), 'Z');
}

TEST_F(EventLogTest, levels_below_are_left_out) {
  EventLog log(target(LogLevel::kWarning));
  EXPECT_FALSE(log.takes(LogLevel::kInfo));
  EXPECT_TRUE(log.takes(LogLevel::kError));
  log.write(LogLevel::kDebug, "a", EventFields::object());
  log.write(LogLevel::kInfo, "b", EventFields::object());
  log.write(LogLevel::kWarning, "c", EventFields::object());
  log.write(LogLevel::kError, "d", EventFields::object());
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(EventLogTest, text_is_for_people) {
  EventLog log(target(LogLevel::kInfo, LogFormat::kText));
  log.write(LogLevel::kWarning, "hang", {{"wait", "block reads"}, {"stage", "fetch"}, {"peers", {1, 2}}});
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_NE(lines()[0].find("Z warning rank 3 @ n2: hang wait=\"block reads\" stage=fetch peers=[1,2]"),
            std::string::npos)
      << lines()[0];
}

TEST_F(EventLogTest, goes_on_behind_a_torn_line) {
  std::ofstream(path_) << "{\"ts\":\"2026";
  EventLog log(target(LogLevel::kInfo));
  log.write(LogLevel::kInfo, "job_start", EventFields::object());
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0], "{\"ts\":\"2026");
  EXPECT_EQ(nlohmann::json::parse(lines()[1])["event"], "job_start");
}

TEST_F(EventLogTest, what_is_no_utf8_is_still_a_line) {
  EventLog log(target(LogLevel::kInfo));
  log.write(LogLevel::kInfo, "failure", {{"error", "file \xff\xfe"}});
  EXPECT_TRUE(nlohmann::json::accept(lines().at(0)));
}

TEST(EventLog, refuses_what_cannot_be_opened) {
  EXPECT_THROW(EventLog({LogFormat::kJson, LogLevel::kInfo, "/nowhere/log.0.jsonl", 0, "n1"}), Error);
}

}  // namespace
}  // namespace ringmark::cluster
