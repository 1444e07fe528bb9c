#include "attnres/report/metrics_table.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "tests/report/fake_run.h"
#include "tests/text/test_files.h"

namespace attnres::metrics_table_test {
namespace {

using ::attnres::testing::FakeRun;
using ::attnres::testing::write_text;
using ::testing::HasSubstr;

TEST(MetricsTable, HasALineForEachStepOfEachRun) {
  const auto folder = fresh_folder("metrics table");
  const auto one = FakeRun().write(folder / "one"), two = FakeRun().write(folder / "two, three");
  write_text(one / "metrics.jsonl",
             "{\"step\":1,\"loss\":5.5,\"lr\":0.001}\n"
             "{\"step\":2,\"loss\":null,\"val_loss\":5.25}\n"
             "{\"step\":3,\"loss\":9}\n"
             "{\"step\":2,\"loss\":4.5,\"val_loss\":5}\n"  // resumed: steps 2 and 3 went
             "{\"step\":3,\"lo");
  write_text(one / "probes.jsonl",
             "{\"step\":2,\"site\":0,\"name\":\"depth_weights\",\"value\":[1]}\n"
             "{\"step\":2,\"site\":3,\"name\":\"output_rms\",\"value\":0.5}\n");
  write_text(two / "metrics.jsonl", "{\"step\":7,\"grad_norm\":2}\nnothing\n");
  std::filesystem::remove(two / "probes.jsonl");
  const MetricsTable table = metrics_table({one, two});
  EXPECT_EQ(table.csv, "run,step,loss,lr,val_loss,output_rms/3,grad_norm\n" + one.string() +
                           ",1,5.5,0.001,,,\n" + one.string() + ",2,4.5,,5,0.5,\n\"" +
                           two.string() + "\",7,,,,,2\n");
  ASSERT_EQ(table.notes.size(), 2u);
  EXPECT_THAT(table.notes[0], HasSubstr("two, three: no probes.jsonl"));
  EXPECT_THAT(table.notes[1], HasSubstr("two, three: metrics.jsonl: 1 line skipped"));
}

TEST(MetricsTable, HasNoMoreColumnsThanAreRead) {
  const auto folder = fresh_folder("metrics table");
  const auto run = FakeRun().write(folder / "run");
  Json line = {{"step", 1}};
  for (int i = 0; i < 10'000; ++i) line[fmt::format("k{}", i)] = i;
  write_text(run / "metrics.jsonl", line.dump() + "\n");
  EXPECT_THAT(message_of<Error>([&] { metrics_table({run}); }),
              HasSubstr("more than 10000 things"));
}

TEST(MetricsTable, RefusesWhatIsNoRun) {
  EXPECT_THAT(message_of<Error>([] { metrics_table({"/nowhere"}); }),
              HasSubstr("/nowhere: not a run folder"));
}

}  // namespace
}  // namespace attnres::metrics_table_test
