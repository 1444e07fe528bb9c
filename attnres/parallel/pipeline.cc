#include "attnres/parallel/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Messages of each direction that a rank expects before it needs them.
constexpr size_t kReceivesAhead = 2;

}  // namespace

SiteSet PipelinePlan::sites_of(int rank) const {
  std::vector<SiteRange> ranges;
  for (size_t stage = rank; stage < stages.size(); stage += size.ranks) {
    ranges.push_back(stages[stage].sites);
  }
  return SiteSet(std::move(ranges));
}

std::vector<SiteSet> PipelinePlan::sites_by_rank() const {
  std::vector<SiteSet> all;
  for (int rank = 0; rank < size.ranks; ++rank) all.push_back(sites_of(rank));
  return all;
}

PipelinePlan plan_pipeline(const DepthMixer& mixer, int sublayers, const PipelineSize& size,
                           TransferPolicy policy, std::vector<SiteRange> stages) {
  require_usage(size.ranks > 1 || size.virtual_stages == 1,
                "pipeline: {} virtual stages need 2 ranks or more, since one would hand to itself",
                size.virtual_stages);
  if (stages.empty()) stages = even_stages(sublayers, size.stages());
  return {size, plan_transfers(mixer, sublayers, size, stages, policy)};
}

// One pass of a step's micro-batches.
class Pipeline::Pass {
 public:
  Pass(Pipeline& pipeline, const std::vector<Batch>& batches, const RunContext& context,
       std::vector<PipelineAction> actions, GradientSums* gradient_sums)
      : pipeline_(pipeline),
        model_(pipeline.model_),
        plan_(pipeline.plan_),
        communicator_(pipeline.communicator_),
        batches_(batches),
        context_(context),
        actions_(std::move(actions)),
        gradient_sums_(gradient_sums),
        kept_(batches.size()) {
    for (const PipelineAction& action : actions_) {
      if (action.direction == Direction::backward) ++backwards_left_[action.stage];
    }
  }

  LossNumbers run() {
    for (const PipelineAction& action : actions_) {
      expect_ahead();
      if (action.direction == Direction::forward) {
        forward(action.stage, action.micro_batch);
      } else {
        backward(action.stage, action.micro_batch);
      }
      while (!sending_.empty() && sending_.front()->is_done()) sending_.pop_front();
    }
    const Timeline::Event waiting(pipeline_.timeline_, "wait", "for what is sent");
    for (const auto& message : sending_) message->wait("what was sent in this step");
    for (const Kept& kept : kept_) {
      require(kept.copies.empty() && kept.runs.empty(), "pipeline: a micro-batch was not freed");
    }
    return sums_;
  }
  // That of the last batch without targets, on the rank of the last stage.
  const at::Tensor& output() const { return output_; }

 private:
  // A state, or the gradients of one, on its way: of sealed tensors those that `received` numbers.
  struct Arrival {
    std::vector<at::Tensor> sealed, open;
    std::vector<std::unique_ptr<PendingMessage>> messages;
  };
  using Copy = std::pair<int, int>;  // of a sealed tensor, and the stage with which it came

  // What a micro-batch has on this rank.
  struct Kept {
    std::map<Copy, at::Tensor> copies, gradients;
    std::map<int, std::unique_ptr<StageRun>> runs;  // by stage, until their backward
    at::Tensor hidden, loss;                        // of the last stage
  };

  int stages() const { return plan_.size.stages(); }
  bool is_last(int stage) const { return stage + 1 == stages(); }
  bool records() const { return at::GradMode::is_enabled(); }

  // Each process of a tensor group has its part, and sends it to its like of the next stage.
  at::Tensor room_for(const PlannedTensor& tensor, int micro_batch, at::ScalarType dtype) const {
    const int64_t tokens = batches_[micro_batch].inputs_BT.numel();
    return at::empty(tensor.part_sizes(model_.parameters().part(), tokens), dtype);
  }
  at::ScalarType activations() const { return model_.parameters().precision().activations; }

  // The stage whose state, before it, an action takes up, or takes up the gradients of; none where
  // it takes up neither.
  std::optional<int> boundary_of(const PipelineAction& action) const {
    if (action.direction == Direction::forward) {
      return action.stage > 0 ? std::optional(action.stage) : std::nullopt;
    }
    return is_last(action.stage) ? std::nullopt : std::optional(action.stage + 1);
  }
  std::deque<Arrival>& arrivals(Direction direction) {
    return direction == Direction::forward ? states_ : gradients_;
  }

  // Posts receives for the actions that come next.
  void expect_ahead() {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      size_t& next = next_expected_[direction == Direction::forward ? 0 : 1];
      while (arrivals(direction).size() < kReceivesAhead && next < actions_.size()) {
        const PipelineAction& action = actions_[next++];
        if (action.direction != direction) continue;
        if (const auto boundary = boundary_of(action)) {
          arrivals(direction).push_back(expect(direction, *boundary, action.micro_batch));
        }
      }
    }
  }

  Arrival expect(Direction direction, int boundary, int micro_batch) {
    const bool is_forward = direction == Direction::forward;
    const int from = plan_.size.rank_of(is_forward ? boundary - 1 : boundary);
    const Channel channel = is_forward ? Channel::forward : Channel::backward;
    const StageTransfers& stage = plan_.stages[boundary];
    Arrival arrival;
    const auto add = [&](std::vector<at::Tensor>& list, const PlannedTensor& tensor,
                         at::ScalarType dtype) {
      list.push_back(room_for(tensor, micro_batch, dtype));
      arrival.messages.push_back(communicator_.receive(list.back(), from, channel));
    };
    const at::ScalarType of_sealed = is_forward ? activations() : compute_dtype(activations());
    for (const int i : stage.received) add(arrival.sealed, stage.before.sealed[i], of_sealed);
    for (const PlannedTensor& tensor : stage.before.open) add(arrival.open, tensor, activations());
    return arrival;
  }

  // `action` is what the message comes of.
  Arrival take(const PipelineAction& action) {
    const Direction direction = action.direction;
    Arrival arrival = std::move(arrivals(direction).front());
    arrivals(direction).pop_front();
    const Timeline::Event waiting(
        pipeline_.timeline_, "wait",
        direction == Direction::forward ? "for a state" : "for gradients");
    const std::string what = "the " + describe(action);
    for (const auto& message : arrival.messages) message->wait(what);
    return arrival;
  }

  // Sends a state, or its gradients, over the boundary before this stage. An undefined gradient is
  // zero.
  void send(Direction direction, int boundary, int micro_batch,
            const std::vector<at::Tensor>& sealed, const std::vector<at::Tensor>& open) {
    const bool is_forward = direction == Direction::forward;
    const int to = plan_.size.rank_of(is_forward ? boundary : boundary - 1);
    const Channel channel = is_forward ? Channel::forward : Channel::backward;
    const StageTransfers& stage = plan_.stages[boundary];
    const Timeline::Event sending(pipeline_.timeline_, "send", fmt::format("to rank {}", to));
    const auto begin = [&](at::Tensor tensor, const PlannedTensor& planned, at::ScalarType dtype,
                           Traffic kind) {
      if (!tensor.defined()) tensor = room_for(planned, micro_batch, dtype).zero_();
      sending_.push_back(communicator_.send(tensor.to(dtype).contiguous(), to, channel, kind));
    };
    const at::ScalarType of_sealed = is_forward ? activations() : compute_dtype(activations());
    for (const int i : stage.received) {
      begin(sealed.at(i), stage.before.sealed[i], of_sealed,
            is_forward ? Traffic::sealed : Traffic::sealed_gradient);
    }
    for (size_t i = 0; i < stage.before.open.size(); ++i) {
      begin(open.at(i), stage.before.open[i], activations(),
            is_forward ? Traffic::open : Traffic::open_gradient);
    }
  }

  // What the stage begins with: what crossed into it, and copies.
  CutState state_before(int stage, int micro_batch) {
    Kept& kept = kept_[micro_batch];
    const StageTransfers& transfers = plan_.stages[stage];
    Arrival arrival = take({Direction::forward, stage - 1, micro_batch});
    for (size_t n = 0; n < transfers.received.size(); ++n) {
      keep(kept, {transfers.received[n], stage}, arrival.sealed[n]);
    }
    CutState before = {.sealed = std::vector<at::Tensor>(transfers.copies.size()),
                       .open = std::move(arrival.open)};
    for (size_t i = 0; i < transfers.copies.size(); ++i) {
      if (transfers.copies[i] == kNoCopy) continue;
      before.sealed[i] = kept.copies.at({static_cast<int>(i), transfers.copies[i]});
    }
    return before;
  }

  // What was sealed here takes no memory: its stage's run has it too.
  int64_t received_bytes_of(const Copy& copy, const at::Tensor& tensor) const {
    const auto& [number, stage] = copy;
    const bool was_received =
        stage > 0 && static_cast<size_t>(number) < plan_.stages[stage].copies.size();
    return was_received ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  void keep(Kept& kept, const Copy& copy, const at::Tensor& tensor) {
    kept.copies[copy] = tensor;
    received_bytes_ += received_bytes_of(copy, tensor);
    pipeline_.peak_received_bytes_ = std::max(pipeline_.peak_received_bytes_, received_bytes_);
  }
  // The copies that came with this stage, or were sealed by it, and their gradients.
  void forget(Kept& kept, int stage) {
    std::erase_if(kept.copies, [&](const auto& entry) {
      if (entry.first.second != stage) return false;
      received_bytes_ -= received_bytes_of(entry.first, entry.second);
      return true;
    });
    std::erase_if(kept.gradients, [&](const auto& entry) { return entry.first.second == stage; });
  }

  // Which copy the state after a stage has of a sealed tensor.
  Copy copy_after(int stage, int tensor) const {
    const std::vector<int>& before = plan_.stages[stage].copies;
    const bool was_there = static_cast<size_t>(tensor) < before.size();
    return {tensor, was_there ? before[tensor] : stage};
  }
  // Whether this rank's next stage reads this copy.
  bool is_read_later(const Copy& copy, int stage) const {
    const int next = stage + plan_.size.ranks;
    if (next >= stages()) return false;
    const std::vector<int>& copies = plan_.stages[next].copies;
    return static_cast<size_t>(copy.first) < copies.size() && copies[copy.first] == copy.second;
  }

  void forward(int stage, int micro_batch) {
    Kept& kept = kept_[micro_batch];
    const Batch& batch = batches_[micro_batch];
    const SiteRange& sites = plan_.stages[stage].sites;
    const CutState before = stage > 0 ? state_before(stage, micro_batch) : CutState();
    const Timeline::Event computing(pipeline_.timeline_, "forward",
                                    describe({Direction::forward, stage, micro_batch}));
    auto run = stage == 0
                   ? std::make_unique<StageRun>(model_, batch, sites, context_)
                   : std::make_unique<StageRun>(
                         model_, before, std::make_shared<Spans>(batch.spans()), sites, context_);
    const CutState& after = run->after();
    if (is_last(stage)) {
      if (batch.targets_BT.defined()) {
        add_loss(kept, after.open.at(0), batch.targets_BT);
      } else {
        output_ = after.open.at(0);
      }
    } else {
      send(Direction::forward, stage + 1, micro_batch, after.sealed, after.open);
      const size_t there = plan_.stages[stage].copies.size();
      for (size_t i = stage == 0 ? 0 : there; i < after.sealed.size(); ++i) {
        const Copy copy = copy_after(stage, static_cast<int>(i));
        if (is_read_later(copy, stage)) keep(kept, copy, after.sealed[i]);
      }
    }
    if (records()) {
      kept.runs[stage] = std::move(run);
    } else if (stage + plan_.size.ranks >= stages()) {
      for (int own = stage; own >= 0; own -= plan_.size.ranks) forget(kept, own);
    }
  }

  void add_loss(Kept& kept, const at::Tensor& hidden_TD, const at::Tensor& targets_BT) {
    const at::Tensor hidden = hidden_TD.detach().set_requires_grad(records());
    const LossSum loss = model_.loss_sum_of(hidden, targets_BT);
    sums_.loss += loss.sum.item<double>();
    sums_.targets += loss.count;
    if (!records()) return;
    kept.hidden = hidden;
    kept.loss = loss.sum;
  }

  void backward(int stage, int micro_batch) {
    Kept& kept = kept_[micro_batch];
    CutState gradients;
    if (!is_last(stage)) gradients = gradients_after(stage, micro_batch);
    GradientSums* const sums = --backwards_left_[stage] == 0 ? gradient_sums_ : nullptr;
    const SiteRange& sites = plan_.stages[stage].sites;
    if (sums != nullptr) sums->begin_last_backward(sites);
    const Timeline::Event computing(pipeline_.timeline_, "backward",
                                    describe({Direction::backward, stage, micro_batch}));
    if (is_last(stage)) {
      kept.loss.backward();
      gradients.open = {kept.hidden.grad()};
      kept.loss.reset();
      kept.hidden.reset();
    }
    CutState before = kept.runs.at(stage)->backward(std::move(gradients));
    kept.runs.erase(stage);
    if (stage > 0) {
      send(Direction::backward, stage, micro_batch, before.sealed, before.open);
      for (size_t i = 0; i < before.sealed.size(); ++i) {
        const Copy copy = {static_cast<int>(i), plan_.stages[stage].copies[i]};
        if (copy.second != kNoCopy && copy.second != stage) {
          kept.gradients[copy] = std::move(before.sealed[i]);
        }
      }
    }
    if (sums != nullptr) sums->end_last_backward(sites);
    forget(kept, stage);
  }

  // What the boundary after the stage gives back, and this rank's later stages have left.
  CutState gradients_after(int stage, int micro_batch) {
    Kept& kept = kept_[micro_batch];
    const StageTransfers& next = plan_.stages[stage + 1];
    Arrival arrival = take({Direction::backward, stage + 1, micro_batch});
    CutState gradients = {.sealed = std::vector<at::Tensor>(next.before.sealed.size()),
                          .open = std::move(arrival.open)};
    for (size_t i = 0; i < gradients.sealed.size(); ++i) {
      const auto found = kept.gradients.find(copy_after(stage, static_cast<int>(i)));
      if (found != kept.gradients.end()) gradients.sealed[i] = std::move(found->second);
    }
    for (size_t n = 0; n < next.received.size(); ++n) {
      at::Tensor& sum = gradients.sealed[next.received[n]];
      if (sum.defined()) {
        sum.add_(arrival.sealed[n]);
      } else {
        sum = std::move(arrival.sealed[n]);
      }
    }
    return gradients;
  }

  Pipeline& pipeline_;
  const Transformer& model_;
  const PipelinePlan& plan_;
  Communicator& communicator_;
  const std::vector<Batch>& batches_;
  RunContext context_;
  std::vector<PipelineAction> actions_;
  GradientSums* gradient_sums_;
  std::map<int, int> backwards_left_;       // by stage
  std::vector<Kept> kept_;                  // by micro-batch
  std::deque<Arrival> states_, gradients_;  // that are expected, in order
  size_t next_expected_[2] = {0, 0};        // of the actions, by direction
  std::deque<std::unique_ptr<PendingMessage>> sending_;
  int64_t received_bytes_ = 0;  // of copies that are there now
  LossNumbers sums_;
  at::Tensor output_;
};

Pipeline::Pipeline(const Transformer& model, const PipelinePlan& plan, Communicator& communicator)
    : model_(model), plan_(plan), communicator_(communicator) {
  require(communicator.size() == plan.size.ranks, "pipeline: of {} ranks, but there are {}",
          plan.size.ranks, communicator.size());
}

LossNumbers Pipeline::forward_backward(const std::vector<Batch>& batches, const RunContext& context,
                                       GradientSums* sums) {
  const PipelineSchedule schedule = interleaved_1f1b(plan_.size, static_cast<int>(batches.size()));
  return Pass(*this, batches, context, schedule[communicator_.rank()], sums).run();
}

PipelineSchedule Pipeline::forwards(int micro_batches) const {
  return forwards_of(interleaved_1f1b(plan_.size, micro_batches));
}

LossNumbers Pipeline::forward(const std::vector<Batch>& batches) {
  const at::NoGradGuard not_recording;
  const PipelineSchedule schedule = forwards(static_cast<int>(batches.size()));
  return Pass(*this, batches, {}, schedule[communicator_.rank()], nullptr).run();
}

at::Tensor Pipeline::output(const at::Tensor& inputs_BT) {
  const at::NoGradGuard not_recording;
  const std::vector<Batch> batches = {{.inputs_BT = inputs_BT, .targets_BT = {}}};
  const PipelineSchedule schedule = forwards(1);
  Pass pass(*this, batches, {}, schedule[communicator_.rank()], nullptr);
  pass.run();
  return pass.output();
}

}  // namespace attnres
