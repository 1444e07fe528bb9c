#include "attnres/inspect/source_similarity.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "attnres/depth/composed_mixer.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kEmbeddingSource = "embedding";
constexpr const char* kPartialSum = "partial sum";

// The sources of one forward pass, [T, D] each, normalised.
class SourceCollector : public RunObserver {
 public:
  SourceCollector(int sublayers, const at::Tensor& embedding_TD) : sublayers_(sublayers) {
    outputs_.push_back(direction(embedding_TD));
    output_names_.emplace_back(kEmbeddingSource);
  }

  void on_read(int site, const ReadTrace& trace) override {
    for (const std::string& name : trace.sources) {
      const bool known =
          std::find(read_names_.begin(), read_names_.end(), name) != read_names_.end();
      if (known || (name == kPartialSum && site < sublayers_)) continue;
      read_names_.push_back(name);
      read_.push_back(name == kEmbeddingSource ? outputs_[0] : direction(running_state_));
    }
  }

  void on_output(int site, const at::Tensor& y, const at::Tensor& running_state) override {
    running_state_ = running_state;
    outputs_.push_back(direction(y));
    output_names_.push_back(source_name("sublayer", site + 1));
  }

  const std::vector<std::string>& names() const {
    return read_names_.empty() ? output_names_ : read_names_;
  }
  // [N, T * D]
  at::Tensor directions() const {
    return at::stack(read_names_.empty() ? outputs_ : read_).flatten(1);
  }

 private:
  static at::Tensor direction(const at::Tensor& v_TD) {
    const at::Tensor v = v_TD.detach().to(at::kDouble);
    const at::Tensor norm = v.norm(2, -1, /*keepdim=*/true);
    return at::where(norm > 0, v / norm, at::zeros_like(v));
  }

  int sublayers_;
  at::Tensor running_state_;
  std::vector<at::Tensor> outputs_, read_;
  std::vector<std::string> output_names_, read_names_;
};

}  // namespace

void SourceSimilarityAverage::add(const at::Tensor& ids_BT) {
  const at::NoGradGuard no_grad;
  SourceCollector collector(model_.sublayers(), model_.token_embeddings(ids_BT.flatten()));
  model_.hidden(ids_BT, {.observer = &collector});
  const at::Tensor directions = collector.directions();
  const at::Tensor sums_NN = directions.mm(directions.t());
  names_ = collector.names();
  sums_NN_ = sums_NN_.defined() ? sums_NN_ + sums_NN : sums_NN;
  tokens_ += ids_BT.numel();
}

SourceSimilarity SourceSimilarityAverage::similarity() const {
  require(tokens_ > 0, "similarity of sources: no tokens were seen");
  const at::Tensor mean_NN = (sums_NN_ / static_cast<double>(tokens_)).to(at::kCPU);
  SourceSimilarity result = {names_, {}};
  for (int64_t i = 0; i < mean_NN.size(0); ++i) {
    const double* row = mean_NN.const_data_ptr<double>() + i * mean_NN.size(1);
    result.cosine.emplace_back(row, row + mean_NN.size(1));
  }
  return result;
}

}  // namespace attnres
