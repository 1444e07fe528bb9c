// Arguments of the kernels' C interface. Where there is a pointer, what it points to is as large as
// the arguments say: nobody can check that.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/ops/depth_attention/kernel_c_api.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::kernel_c_api_fuzz {
namespace {

using namespace testing;

constexpr int64_t kLargest = 40;

// Memory of exactly so many numbers, null where the arguments leave it out.
class Given {
 public:
  Given(const attnres_inputs& inputs, uint32_t left_out) : in_(inputs), left_out_(left_out) {}

  void* numbers(int64_t count, int64_t of, int64_t each = 1) {
    const bool is_there = next();
    return is_there && fits() ? memory_.emplace_back(count * of * each * 8).data() : nullptr;
  }
  void* const* rows(int64_t count, bool each_may_be_left_out = false) {
    const bool is_there = next();
    if (!is_there || !fits()) return nullptr;
    std::vector<void*> rows;
    for (int64_t i = 0; i < count; ++i) {
      const bool missing = each_may_be_left_out && i % 2 == 1;
      rows.push_back(missing ? nullptr
                             : memory_.emplace_back(in_.num_tokens * in_.width * 8).data());
    }
    return rows_.emplace_back(std::move(rows)).data();
  }

 private:
  bool next() {
    const bool is_there = (left_out_ & 1) == 0;
    left_out_ >>= 1;
    return is_there;
  }
  bool fits() const {
    for (const int64_t size : {in_.num_sources, in_.num_sites, in_.num_tokens, in_.width}) {
      if (size < 0 || size > kLargest) return false;
    }
    return true;
  }

  const attnres_inputs& in_;
  uint32_t left_out_;
  std::vector<std::vector<unsigned char>> memory_;
  std::vector<std::vector<void*>> rows_;
};

attnres_inputs inputs_of(InputNumbers& numbers) {
  attnres_inputs in = {};
  in.dtype = numbers.small();
  in.mode = numbers.small();
  // Small ones mostly, or any.
  for (int64_t* size : {&in.num_sources, &in.num_sites, &in.num_tokens, &in.width}) {
    *size = numbers.small();
    if (*size == 127) *size = numbers.next<int64_t>();
  }
  return in;
}

void forward(InputNumbers& numbers, uint32_t left_out) {
  attnres_forward_args args = {};
  attnres_inputs& in = args.inputs;
  in = inputs_of(numbers);
  Given given(in, left_out);
  const int64_t N = in.num_sources, S = in.num_sites, T = in.num_tokens, D = in.width;
  args.eps = numbers.next<double>();
  in.sources = given.rows(N);
  in.queries = given.numbers(S, D);
  args.outputs = given.rows(S);
  args.max = given.numbers(S, T);
  args.sum = given.numbers(S, T);
  args.inverse_rms = given.numbers(N, T);
  args.scores = given.numbers(S, N, T);
  args.weights = given.numbers(S, N, T);
  attnres_status_text(attnres_forward(&args));
  attnres_forward_range(&args, numbers.small(), numbers.small());
}

void backward(InputNumbers& numbers, uint32_t left_out) {
  attnres_backward_args args = {};
  attnres_inputs& in = args.inputs;
  in = inputs_of(numbers);
  Given given(in, left_out);
  const int64_t N = in.num_sources, S = in.num_sites, T = in.num_tokens, D = in.width;
  args.accumulate = numbers.small();
  in.sources = given.rows(N);
  in.queries = given.numbers(S, D);
  args.grad_outputs = given.rows(S);
  args.grad_sum = given.numbers(S, T);
  args.inverse_rms = given.numbers(N, T);
  args.scores = given.numbers(S, N, T);
  args.weights = given.numbers(S, N, T);
  args.grad_sources = given.rows(N, /*each_may_be_left_out=*/true);
  args.grad_queries = given.numbers(S, D);
  attnres_status_text(attnres_backward(&args));
  attnres_backward_range(&args, numbers.small(), numbers.small());
}

void run(std::string_view input) {
  InputNumbers numbers(input);
  const bool is_forward = numbers.next<uint8_t>() % 2 == 0;
  const auto left_out = numbers.next<uint16_t>();
  is_forward ? forward(numbers, left_out) : backward(numbers, left_out);
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  const std::string eps("\xf1\x68\xe3\x88\xb5\xf8\xe4\x3e", 8);  // 1e-5
  for (const char dtype : {'\0', '\1', '\2'}) {
    const std::string sizes = {3, 2, 33, 17};
    // Without max and sum, and with them.
    seeds.push_back(std::string{0, 0x18, 0, dtype, 0} + sizes + eps + std::string{0, 5});
    seeds.push_back(std::string{0, 0, 0, dtype, 1} + sizes + eps + std::string{0, 5});
    seeds.push_back(std::string{1, 8, 0, dtype, 0} + sizes + std::string{0, 0, 5});
    seeds.push_back(std::string{1, 0, 0, dtype, 1} + sizes + std::string{1, 0, 5});
  }
  return seeds;
}

const ListedFuzzTarget kListed({"kernel_c_api", run, seeds});

}  // namespace
}  // namespace attnres::kernel_c_api_fuzz
