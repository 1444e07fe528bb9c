#include <algorithm>
#include <cmath>

#include "attnres/ops/operation_problems.h"
#include "attnres/ops/paged_attention/paged_attention.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

constexpr int64_t kPageTokens = 8;

// Sequences whose pages lie the last first, with one between them that is no one's; the last token
// of each is a query.
class PagedSequences {
 public:
  PagedSequences(const std::vector<int64_t>& lengths, int64_t window)
      : lengths_(lengths), window_(window) {
    for (const int64_t length : lengths) count_ += 1 + pages_in(length);
    int64_t page = count_;
    for (const int64_t length : lengths) {
      std::vector<int64_t>& own = pages_.emplace_back();
      for (int64_t i = 0; i < pages_in(length); ++i) own.push_back(--page);
      --page;
    }
  }

  int64_t queries() const { return std::ssize(lengths_); }
  int64_t rows() const { return count_ * kPageTokens; }

  std::vector<SeenTokens> seen() const {
    std::vector<SeenTokens> seen;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      seen.push_back({pages_[i].data(), first(i), lengths_[i]});
    }
    return seen;
  }

  // Keys [rows, G, K] and values [rows, G, V].
  Tensor attend(const Tensor& q_THK, const Tensor& keys, const Tensor& values) const {
    const double scale = 1 / std::sqrt(static_cast<double>(q_THK.size(2)));
    return paged_attention_composed(q_THK, keys, values, scale, seen(), kPageTokens, {});
  }

 private:
  static int64_t pages_in(int64_t length) { return (length + kPageTokens - 1) / kPageTokens; }
  // The first token that query i sees.
  int64_t first(size_t i) const {
    return window_ == 0 ? 0 : std::max<int64_t>(0, lengths_[i] - window_);
  }

  std::vector<int64_t> lengths_;
  int64_t window_, count_ = 0;
  std::vector<std::vector<int64_t>> pages_;
};

struct HeadSizes {
  int64_t H, G, K, V;
};

// Inputs: q, keys, values.
OperationProblem paged_attention_problem(const HeadSizes& s, const std::vector<int64_t>& lengths,
                                         int64_t window = 0) {
  DrawnInputs draw("paged attention");
  const PagedSequences sequences(lengths, window);
  OperationProblem problem;
  problem.inputs = {draw.normal({sequences.queries(), s.H, s.K}, 2),
                    draw.normal({sequences.rows(), s.G, s.K}, 1),
                    draw.normal({sequences.rows(), s.G, s.V}, 1)};
  problem.compute = [sequences](const Tensors& in) -> Tensors {
    return {paged_attention(in[0], in[1], in[2], sequences.seen(), kPageTokens)};
  };
  problem.formula = [sequences](const Tensors& in) -> Tensors {
    return {sequences.attend(in[0], in[1], in[2])};
  };
  return problem;
}

// Inputs: q [T, H, C], latents, whose first `rank` numbers are values.
OperationProblem paged_latents_problem(int64_t H, int64_t C, int64_t rank,
                                       const std::vector<int64_t>& lengths) {
  DrawnInputs draw("paged latents");
  const PagedSequences sequences(lengths, /*window=*/0);
  OperationProblem problem;
  problem.inputs = {draw.normal({sequences.queries(), H, C}, 2),
                    draw.normal({sequences.rows(), C}, 1)};
  problem.compute = [=](const Tensors& in) -> Tensors {
    return {paged_latent_attention(in[0], in[1], rank, 1 / std::sqrt(static_cast<double>(C)),
                                   sequences.seen(), kPageTokens)};
  };
  problem.formula = [=](const Tensors& in) -> Tensors {
    const Tensor rows = in[1].unsqueeze(1);
    return {sequences.attend(in[0], rows, rows.narrow(2, 0, rank))};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> paged_attention_problems() {
  const ErrorBounds bounds = {2e-5, {}, 8e-3};
  const std::vector<int64_t> lengths = {1, 7, 8, 33, 300, 521};
  OperationProblems attention = {
      .name = "paged attention",
      .forward = bounds,
      .large = paged_attention_problem({4, 2, 64, 64}, {600, 5, 300, 700})};
  for (const HeadSizes& sizes : {HeadSizes{1, 1, 8, 8}, HeadSizes{6, 1, 20, 36},
                                 HeadSizes{3, 3, 128, 100}, HeadSizes{4, 2, 64, 64}}) {
    attention.problems.push_back(paged_attention_problem(sizes, lengths));
  }
  // Windows of one token, within a page, over pages, and over parts that threads share.
  for (const int64_t window : {1, 5, 30, 256, 600, 8}) {
    attention.problems.push_back(paged_attention_problem({4, 2, 16, 16}, lengths, window));
  }
  return {attention,
          {.name = "paged attention over latents",
           .forward = bounds,
           .problems = {paged_latents_problem(2, 16, 16, {5}),
                        paged_latents_problem(6, 52, 36, {1, 33, 300})},
           .large = paged_latents_problem(6, 52, 36, {600, 5, 300, 700})}};
}

}  // namespace attnres
