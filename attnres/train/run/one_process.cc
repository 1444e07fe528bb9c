#include "attnres/train/run/one_process.h"

#include "attnres/train/run/divergence.h"
#include "attnres/train/run/first_weights.h"

namespace attnres {

OneProcess::OneProcess(const TrainJob& job, const RunText& text)
    : job_(job),
      text_(text),
      batches_(batches_of(text.train, job.recipe, vocabulary_of(*text.tokenizer))),
      validation_(text, job.recipe.train) {}

void OneProcess::begin(FirstWeights weights) {
  training_.emplace(make_training(job_, text_.tokenizer->vocab_size(), weights));
  step_.emplace(*training_->model, training_->optimizer, job_.recipe.train);
  if (!job_.trace.empty()) trace_.emplace(job_.trace, training_->model->parameters().device());
}

StepResult OneProcess::run(int64_t step, double learning_rate) {
  const TrainConfig& train = job_.recipe.train;
  if (trace_) trace_->before_step();
  for (int64_t part = 0; part < train.accumulate; ++part) {
    step_->forward_backward(batches_.batch(step, part, train.batch_size / train.accumulate));
  }
  const StepResult result = update(step, learning_rate);
  if (trace_) trace_->after_step();
  return result;
}

StepResult OneProcess::update(int64_t step, double learning_rate) {
  try {
    return step_->update(learning_rate);
  } catch (Diverged& diverged) {
    diverged.broken = find_broken_rows(*training_->model, training_->optimizer, batches_,
                                       job_.recipe.train, step);
    throw;
  }
}

void OneProcess::save_last() {
  require_finite_weights(are_weights_finite(*training_->model));
  save_checkpoint(RunPaths{job_.out}.last(), *training_, *text_.tokenizer,
                  job_.recipe.train.context);
}

void OneProcess::save_best() {
  save_trained(RunPaths{job_.out}.best(), *training_, *text_.tokenizer, job_.recipe.train.context);
}

}  // namespace attnres
