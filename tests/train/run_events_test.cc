#include "attnres/train/run_folder/run_events.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"
#include "tests/train/event_records.h"

namespace attnres::testing::run_events_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunEventsTest : public ::testing::Test {
 protected:
  // All that is written of such logs.
  std::string events_of(const std::string& metrics, const std::string& probes) const {
    write_text(paths_.metrics(), metrics);
    write_text(paths_.probes(), probes);
    { const RunEvents events(paths_, /*sublayers=*/2); }
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(paths_.folder)) {
      if (!entry.path().filename().string().starts_with("events.out")) continue;
      for (const std::string& message : event_records(entry.path())) all += message;
    }
    return all;
  }

  const RunPaths paths_{fresh_folder("run")};
};

TEST_F(RunEventsTest, LeavesOutWhatIsNoScalar) {
  EXPECT_THAT(
      events_of("{\"step\":1,\"loss\":2,\"lr\":\"a\"}\n",
                "{\"step\":1,\"site\":1,\"name\":\"state_rms\",\"value\":3}\n"
                "{\"step\":1,\"site\":7,\"name\":\"far\",\"value\":3}\n"
                "{\"step\":1,\"site\":\"x\",\"name\":\"text\",\"value\":3}\n"
                "{\"step\":1,\"site\":0,\"name\":4,\"value\":3}\n{\"step\":1}\n"),
      AllOf(HasSubstr("loss/train"), HasSubstr("state_rms/01 feed-forward 1"),
            Not(HasSubstr("learning_rate")), Not(HasSubstr("far")), Not(HasSubstr("text"))));
}

TEST_F(RunEventsTest, NamesTheLineThatHasNoStep) {
  const auto refusal = [&](const char* line) {
    return message_of<Error>([&] { events_of(std::string("{\"step\":1}\n") + line, ""); });
  };
  for (const char* line : {"{\"loss\":1}\n", "[1]\n", "{\"step\":-1}\n", "{\"step\":1e300}\n"}) {
    EXPECT_THAT(refusal(line), AllOf(HasSubstr("metrics.jsonl: line 2"), HasSubstr("\"step\"")));
  }
}

// Whatever number a file's name has.
TEST_F(RunEventsTest, BeginsWhenItsFileSaysIfThatIsATime) {
  write_text(paths_.folder / "events.out.tfevents.9223372036854775807.attnres", "");
  EXPECT_THAT(events_of("{\"step\":1,\"loss\":2}\n", ""), HasSubstr("loss/train"));
}

}  // namespace
}  // namespace attnres::testing::run_events_test
