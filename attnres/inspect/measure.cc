#include "attnres/inspect/measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/evaluate.h"
#include "attnres/infer/score.h"
#include "attnres/inspect/model_mixing_matrix.h"
#include "attnres/parameters/mixer_parameters.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/text/ids.h"
#include "attnres/text/token_class.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// The part of a model that a parameter belongs to.
const char* part_of(const ParameterRegistry& parameters, const Parameter& parameter) {
  if (parameter.kind == ParameterKind::embedding) return "embedding";
  if (parameter.kind == ParameterKind::head) return "head";
  if (parameter.role == "input_norm" || parameter.role == "output_norm") return "norms";
  if (is_of_mixer(parameters, parameter)) return "depth mixing";
  return parameter.site % 2 == 0 ? "attention" : "feed-forward";
}

void check_text(const Transformer& model, const std::vector<int32_t>& tokens) {
  require(tokens.size() >= 2,
          "inspect: the text has {}; give at least 2, of which the last is only predicted",
          counted(std::ssize(tokens), "token"));
  check_ids(model, tokens);
}

// The median rank over single channels of single tokens.
int rank_of_samples(const MixingMatrix& matrix) {
  std::vector<int> ranks;
  for (const Matrix& sample : matrix.samples) ranks.push_back(semiseparable_rank(sample));
  std::sort(ranks.begin(), ranks.end());
  return ranks[ranks.size() / 2];
}

// The group of each token of a batch, [B * T], by its id and its position.
at::Tensor groups_of(const at::Tensor& ids_BT,
                     const std::function<int64_t(int64_t id, int64_t position)>& group) {
  const at::Tensor ids = ids_BT.contiguous();
  at::Tensor groups = at::empty({ids.numel()}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    groups.mutable_data_ptr<int64_t>()[i] =
        group(ids.const_data_ptr<int64_t>()[i], i % ids.size(1));
  }
  return groups;
}

std::vector<std::string> bucket_names(int64_t context) {
  std::vector<std::string> names;
  for (int64_t bucket = 0; bucket <= position_bucket(context); ++bucket) {
    names.push_back(position_bucket_name(bucket));
  }
  return names;
}

// Both groupings in one pass.
class BothGroupings : public RunObserver {
 public:
  BothGroupings(const Transformer& model, int64_t context)
      : by_position(model, bucket_names(context)),
        by_class(model, {kTokenClassNames.begin(), kTokenClassNames.end()}) {}

  void on_read(int site, const ReadTrace& trace) override {
    by_position.on_read(site, trace);
    by_class.on_read(site, trace);
  }

  GroupedDepthWeights by_position, by_class;
};

void measure_groups(const Transformer& model, const Tokenizer& tokenizer, int64_t context,
                    const EvaluationBatches& batches, Inspection& inspection) {
  const at::NoGradGuard no_grad;
  BothGroupings seen(model, context);
  for (int64_t i = 0; i < batches.size(); ++i) {
    const at::Tensor ids_BT = batches[i].inputs_BT;
    seen.by_position.set_groups(
        groups_of(ids_BT, [](int64_t, int64_t position) { return position_bucket(position); }));
    seen.by_class.set_groups(groups_of(ids_BT, [&](int64_t id, int64_t) {
      const bool has_text = id < tokenizer.vocab_size();
      return static_cast<int64_t>(
          token_class(has_text ? tokenizer.token_text(static_cast<int32_t>(id)) : ""));
    }));
    model.hidden(ids_BT, {.observer = &seen});
  }
  inspection.by_position = seen.by_position.groups();
  // Tokens without texts are of no class.
  if (tokenizer.kind() != kIds) inspection.by_token_class = seen.by_class.groups();
}

std::string escaped(unsigned char byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  return fmt::format("\\x{:02x}", byte);
}

// As it can be printed on one line.
std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool control = byte < 0x20 || byte == 0x7f;
    if (step.kind == Utf8Step::Kind::character && !control) {
      out += text.substr(0, step.bytes);
    } else {
      for (const unsigned char bad : text.substr(0, step.bytes)) out += escaped(bad);
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace

Inspection inspect_model(const Transformer& model, int64_t context) {
  Inspection inspection;
  inspection.model = model.config();
  inspection.vocab_size = model.vocab_size();
  inspection.context = context;
  for (const char* part :
       {"embedding", "attention", "feed-forward", "norms", "depth mixing", "head"}) {
    int64_t& count = inspection.parameters.emplace_back(part, 0).second;
    for (const Parameter& parameter : model.parameters().all()) {
      if (part_of(model.parameters(), parameter) == std::string_view(part)) {
        count += parameter.tensor.numel();
      }
    }
  }
  inspection.parameters.emplace_back("total", model.parameters().count());
  return inspection;
}

void measure_depth_weights(const Transformer& model, int64_t context,
                           const std::vector<int32_t>& tokens, Inspection& inspection) {
  check_text(model, tokens);
  const EvaluationBatches batches({tokens}, context, /*batch_size=*/1);
  DepthWeightAverage average(model);
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < batches.size(); ++i) {
    model.hidden(batches[i].inputs_BT, {.observer = &average});
  }
  inspection.sites = average.sites();
  const std::optional<DepthWeightSummary> summary = summarize(*inspection.sites);
  if (!summary) return;
  inspection.embedding_share = summary->embedding_share;
  inspection.intra_block = summary->own_block;
  if (summary->own_block) inspection.inter_block = 1 - *summary->own_block;
}

void measure_matrices(const Transformer& model, int64_t context, const std::vector<int32_t>& tokens,
                      bool ranks, Inspection& inspection) {
  constexpr int64_t kMostTokens = 512;
  check_text(model, tokens);
  const EvaluationBatches batches({tokens}, std::min(context, kMostTokens), /*batch_size=*/1);
  for (MixingMatrix& matrix : mixing_matrices(model, batches[0].inputs_BT)) {
    InspectedMatrix& inspected = inspection.mixing_matrices.emplace_back();
    if (ranks) {
      inspected.semiseparable_rank = semiseparable_rank(matrix.mean);
      inspected.semiseparable_rank_of_samples = rank_of_samples(matrix);
    }
    inspected.stream = std::move(matrix.stream);
    inspected.mean = std::move(matrix.mean);
  }
}

void measure_effects(const Transformer& model, const Tokenizer& tokenizer, int64_t context,
                     const std::vector<int32_t>& tokens,
                     const std::function<void(int64_t done, int64_t total)>& on_progress,
                     Inspection& inspection) {
  check_text(model, tokens);
  inspection.effects = measure_drop_effects(model, tokens, context, on_progress);
  std::vector<double> changes;
  for (const auto& layer : inspection.effects->layers) changes.push_back(layer.change);
  inspection.effective_depth = effective_depth(changes);
  const EvaluationBatches batches({tokens}, context,
                                  std::max<int64_t>(kEvaluationTokensABatch / context, 1));
  const Batch first = batches[0];
  inspection.magnitudes = measure_magnitudes(model, first.inputs_BT, first.targets_BT);
  SourceSimilarityAverage similarity(model);
  const EvaluationBatches windows({tokens}, context, /*batch_size=*/1);
  for (int64_t i = 0; i < windows.size(); ++i) similarity.add(windows[i].inputs_BT);
  inspection.similarity = similarity.similarity();
  measure_groups(model, tokenizer, context, batches, inspection);
}

void measure_tokens(const Transformer& model, const Tokenizer& tokenizer, int64_t context,
                    std::vector<int32_t> ids, Inspection& inspection) {
  require(!ids.empty(), "inspect: the text is empty; give one with a token at least");
  check_ids(model, ids);
  ids.resize(std::min<size_t>(ids.size(), context));
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  InspectedTokens& tokens = inspection.tokens.emplace();
  const bool has_texts = tokenizer.kind() != kIds;
  for (const int32_t id : ids) {
    // A model may have more embeddings than its tokenizer has tokens.
    tokens.texts.push_back(has_texts && id < tokenizer.vocab_size()
                               ? printable(tokenizer.token_text(id))
                               : fmt::format("{}", id));
  }
  tokens.ids = std::move(ids);
  tokens.sites = token_depth_weights(model, at::tensor(wide));
}

}  // namespace attnres
