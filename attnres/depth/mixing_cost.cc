#include "attnres/depth/mixing_cost.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "attnres/support/progress.h"

namespace attnres {
namespace {

// Few, and enough that what a token does not multiply hardly counts; fewer in a deep model, where a
// site may read all before it.
int64_t tokens_to_measure(int sublayers) {
  return std::clamp<int64_t>(64 * 64 / std::max(sublayers, 1), 4, 64);
}

// Numbers that a tensor holds, however often they are repeated.
double numbers_in(const at::Tensor& tensor) {
  double numbers = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0) numbers *= static_cast<double>(tensor.size(i));
  }
  return tensor.numel() == 0 ? 0 : numbers;
}

template <class Values>
std::vector<at::Tensor> tensors_in(const Values& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

double sum_of_numbers(const std::vector<at::Tensor>& tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) sum += numbers_in(tensor);
  return sum;
}

struct Count {
  double read = 0, written = 0, multiply_adds = 0;
};

// The innermost operations that this thread runs; products and our own kernels as a whole, whatever
// they call. A view moves nothing.
class OperationCounter {
 public:
  OperationCounter() {
    current = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&OperationCounter::on_start, &OperationCounter::on_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperationCounter() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  const Count& count() const { return count_; }

 private:
  struct Running : at::ObserverContext {
    std::vector<at::Tensor> inputs;
    int64_t counted_before = 0;
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    auto running = std::make_unique<Running>();
    running->inputs = tensors_in(function.inputs());
    running->counted_before = current->operations_;
    if (is_whole(function.name())) ++current->wholes_running_;
    return running;
  }
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
    current->note(function, static_cast<Running&>(*context));
  }

  static bool is_product(std::string_view name) {
    static const std::set<std::string_view> products = {
        "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot"};
    // What `product` calls where oneDNN is the fastest.
    return products.contains(name) || name == "mkldnn::_linear_pointwise";
  }
  static bool is_whole(std::string_view name) {
    return is_product(name) || name.starts_with("attnres::");
  }

  void note(const at::RecordFunction& function, const Running& running) {
    const std::string_view name = function.name();
    const bool whole = is_whole(name);
    if (whole) --wholes_running_;
    if (wholes_running_ > 0) return;
    if (!whole && operations_ != running.counted_before) return;  // its parts were counted
    if (name.starts_with("aten::empty") || running.inputs.empty()) return;
    const std::vector<at::Tensor> outputs = tensors_in(function.outputs());
    const bool in_place = name.ends_with('_');
    if (!whole && !in_place && is_view(running.inputs, outputs)) return;
    ++operations_;
    count_.read += sum_of_numbers(running.inputs);
    count_.written += sum_of_numbers(outputs);
    count_.multiply_adds += is_product(name) ? product_multiply_adds(running.inputs, outputs)
                                             : passes(function, running.inputs, outputs) *
                                                   sum_of_numbers(running.inputs);
  }

  static bool is_view(const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& outputs) {
    for (const at::Tensor& output : outputs) {
      for (const at::Tensor& input : inputs) {
        if (output.has_storage() && input.has_storage() && output.is_alias_of(input)) return true;
      }
    }
    return outputs.empty();
  }

  // [.., M, K] x [.., K, N]: the size of the result times K, the last of the left operand's sizes.
  static double product_multiply_adds(const std::vector<at::Tensor>& inputs,
                                      const std::vector<at::Tensor>& outputs) {
    const at::Tensor& left = inputs[inputs.size() - 2];
    return static_cast<double>(outputs[0].numel() * left.size(-1));
  }

  // Multiply-adds of an operation for each number that it reads, which some say themselves: score,
  // square and weighted sum of depth attention, the first and the last for each of the outputs in
  // phase 1; streams that are mixed, for each of the new ones.
  static double passes(const at::RecordFunction& function, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
    const std::string_view name = function.name();
    if (name == "attnres::depth_scores" || name == "attnres::sinkhorn") {
      return static_cast<double>(function.inputs().back().toInt());
    }
    if (name == "attnres::depth_attention_fused") return 3;
    if (name == "attnres::depth_attention_phase_two") return 3;
    if (name == "attnres::depth_attention_phase_one") {
      return 2 * static_cast<double>(outputs.size()) + 1;
    }
    if (name == "attnres::write_streams" && inputs.size() == 4) {
      return static_cast<double>(inputs[0].size(1));
    }
    return 1;
  }

  static thread_local OperationCounter* current;
  at::CallbackHandle handle_;
  Count count_;
  int64_t operations_ = 0;
  int wholes_running_ = 0;
};

thread_local OperationCounter* OperationCounter::current = nullptr;

// Bytes of tensors that live on this thread.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes = 0;
};

// Sublayers that compute nothing. Their outputs are views, for which nothing is counted, or, where
// they are `counted`, new tensors that only a mixer may keep.
class Outputs {
 public:
  Outputs(const MixerShape& shape, int64_t tokens, bool counted = false) : counted_(counted) {
    for (int site = 0; site < shape.sublayers; ++site) {
      outputs_.push_back(at::randn({tokens, shape.width}));
    }
    const auto project = [&](int64_t heads) {
      return at::randn({tokens, heads, shape.head_width()});
    };
    heads_ = {project(shape.heads), project(shape.kv_heads), project(shape.kv_heads)};
  }

  // Up to site `last`; returns what the sublayers read, which they keep.
  std::vector<at::Tensor> run(const DepthMixer& mixer, DepthState& state, int last) const {
    std::vector<at::Tensor> inputs;
    while (state.site < last) {
      const SublayerInput input = mixer.read(state);
      if (input.adapt_heads) {
        AttentionHeads heads = {like(heads_.q), like(heads_.k), like(heads_.v)};
        input.adapt_heads(heads);
        inputs.insert(inputs.end(), {heads.q, heads.k, heads.v});
      }
      for (const at::Tensor& read : {input.x, input.query, input.key, input.value}) {
        if (read.defined()) inputs.push_back(read);
      }
      mixer.write(state, {output(state.site)});
    }
    return inputs;
  }

 private:
  at::Tensor output(int site) const {
    const at::Tensor view = like(outputs_[site]);
    return counted_ ? view.clone() : view;  // no leaf, which the graph would keep
  }
  // While gradients are recorded, with one.
  static at::Tensor like(const at::Tensor& tensor) {
    return tensor.detach().set_requires_grad(at::GradMode::is_enabled());
  }

  bool counted_;
  std::vector<at::Tensor> outputs_;
  AttentionHeads heads_;
};

// Counts a forward pass without gradients.
Count count_forward(const DepthMixer& mixer, const MixerShape& shape) {
  const int64_t tokens = tokens_to_measure(shape.sublayers);
  const Outputs outputs(shape, tokens);
  const at::Tensor embedding = at::randn({tokens, shape.width});
  const at::NoGradGuard not_recording;
  const OperationCounter counter;
  DepthState state = mixer.start(embedding);
  outputs.run(mixer, state, shape.sublayers);
  mixer.read(state);
  return counter.count();
}

double moved_of(const Count& count, const MixerShape& shape) {
  const auto tokens = static_cast<double>(tokens_to_measure(shape.sublayers));
  return (count.read + count.written) / tokens / static_cast<double>(shape.width) / shape.sublayers;
}

}  // namespace

MixingCost measure_mixing_cost(const DepthMixing& mixing, const MixerShape& shape) {
  ParameterRegistry parameters(at::kFloat, /*seed=*/std::nullopt);
  const auto mixer = mixing.make_mixer(shape, parameters);
  const int L = shape.sublayers;
  MixingCost cost;
  for (const Parameter& p : parameters.all()) {
    if (p.role != "input_norm") cost.parameters += p.tensor.numel();
    // Drawing them would take longer than all else.
    p.tensor.detach().fill_(p.kind == ParameterKind::matrix ? 0 : 1);
  }
  const Count count = count_forward(*mixer, shape);
  const auto tokens = static_cast<double>(tokens_to_measure(L));
  cost.moved = moved_of(count, shape);
  cost.multiply_adds = count.multiply_adds / tokens / L;
  const StatePlan plan = mixer->plan(L / 2);
  const auto units = [&](const PlannedTensor& tensor) {
    return static_cast<double>(tensor.numbers()) / static_cast<double>(shape.width);
  };
  for (const PlannedTensor& tensor : plan.sealed) {
    if (tensor.last_reader >= L / 2) cost.sealed += units(tensor);
  }
  for (const PlannedTensor& tensor : plan.open) cost.open += units(tensor);
  cost.kept = measure_kept(*mixer, shape);
  return cost;
}

double time_mixing(const DepthMixer& mixer, const MixerShape& shape, int64_t tokens) {
  const at::AutoGradMode recording(true);
  const Outputs outputs(shape, tokens);
  const at::Tensor embedding = at::randn({tokens, shape.width}).set_requires_grad(true);
  const double start = monotonic_seconds();
  DepthState state = mixer.start(embedding);
  std::vector<at::Tensor> read = outputs.run(mixer, state, shape.sublayers);
  read.push_back(mixer.read(state).x);
  state = {};
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& x : read) gradients.push_back(at::ones_like(x));
  torch::autograd::backward(read, gradients);
  return monotonic_seconds() - start;
}

double measure_moved(const DepthMixer& mixer, const MixerShape& shape) {
  return moved_of(count_forward(mixer, shape), shape);
}

double measure_kept(const DepthMixer& mixer, const MixerShape& shape) {
  const at::AutoGradMode recording(true);
  const int64_t tokens = tokens_to_measure(shape.sublayers);
  const Outputs outputs(shape, tokens, /*counted=*/true);
  const at::Tensor embedding = at::randn({tokens, shape.width});
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, live);
  DepthState state = mixer.start(embedding.set_requires_grad(true));
  const std::vector<at::Tensor> inputs = outputs.run(mixer, state, shape.sublayers);
  const at::Tensor output = mixer.read(state).x;
  state = {};
  return static_cast<double>(live->bytes) / sizeof(float) /
         static_cast<double>(tokens * shape.width * shape.sublayers);
}

}  // namespace attnres
