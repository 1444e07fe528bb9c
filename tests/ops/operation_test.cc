#include "attnres/ops/operation.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "attnres/ops/sinkhorn/sinkhorn.h"

namespace attnres::operation_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

thread_local std::vector<std::string> seen;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name.starts_with("attnres::")) seen.push_back(name);
  return nullptr;
}

// What a profiler sees of an operation.
std::vector<std::string> names_of_sinkhorn(const at::Tensor& logits) {
  seen.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  sinkhorn(logits, 2);
  at::removeCallback(handle);
  return seen;
}

TEST(Operations, GoPastTheDispatcherWhereNothingIsRecorded) {
  const at::Tensor logits = at::randn({5, 3, 3}).set_requires_grad(true);
  EXPECT_THAT(names_of_sinkhorn(logits), Contains("attnres::sinkhorn_fused"));
  const at::NoGradGuard not_recording;
  EXPECT_THAT(names_of_sinkhorn(logits), ElementsAre("attnres::sinkhorn"));
  EXPECT_THAT(names_of_sinkhorn(logits.to(at::kMeta)), Not(Contains("attnres::sinkhorn_fused")));
}

}  // namespace
}  // namespace attnres::operation_test
