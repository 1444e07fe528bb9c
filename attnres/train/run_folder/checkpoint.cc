#include "attnres/train/run_folder/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/train/run_folder/run_folder.h"
#include "attnres/train/run_folder/sharded_folder.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMoments = "optimizer";
constexpr const char* kStateFile = "training_state.json";

struct StateFile : TrainingState {
  int64_t updates = 0;
  // Checksums of what was saved with it; empty in checkpoints of earlier versions.
  std::string model_checksum, optimizer_checksum;

  template <class V>
  void visit(V& v) {
    const Limits count = from_to(0, 0x1p53);
    v("step", step, "", count);
    v("updates", updates, "", count);
    v("tokens", tokens, "", count);
    v("seconds", seconds, "", at_least(0));
    v("best_loss", best_loss);
    v("best_step", best_step, "", count);
    v("validation_loss", validation_loss);
    v("peak_bytes", peak_bytes, "", count);
    v("metrics_bytes", metrics_bytes, "", count);
    v("probes_bytes", probes_bytes, "", count);
    v("samples_bytes", samples_bytes, "", count);
    v("model_checksum", model_checksum);
    v("optimizer_checksum", optimizer_checksum);
  }
};

std::string checksum_of(const Json& state) {
  return hex(hash_bytes(state.dump()));
}

// Which files hold the weights of a checkpoint.
const char* weights_of(bool is_adapter) {
  return is_adapter ? kAdapterWeights : kWeights;
}

// Beside the files of the model and of the moments.
void write_state(const fs::path& folder, const Training& training) {
  const StateFile state = {training.state, training.optimizer.updates,
                           TensorFiles(folder, weights_of(training.base.has_value())).checksum(),
                           TensorFiles(folder, kMoments).checksum()};
  Json json = write_config(state);
  json["checksum"] = checksum_of(json);
  write_file(folder / kStateFile, json.dump(2) + "\n");
}

StateFile read_state(const fs::path& folder) {
  const fs::path path = folder / kStateFile;
  Json json = read_json(path);
  const Json checksum = json.is_object() ? json.value("checksum", Json()) : Json();
  if (json.is_object()) json.erase("checksum");
  require(checksum == checksum_of(json), "{}: damaged: its checksum does not match", path.string());
  StateFile state;
  read_config(json, path.string(), state);
  return state;
}

// Throws Error where the files are of another checkpoint than the state.
void require_saved_together(const TensorFiles& files, const std::string& checksum) {
  require(checksum.empty() || files.checksum() == checksum,
          "{}: is of another checkpoint than the {} beside it; put the files of one checkpoint "
          "together",
          files.what(), kStateFile);
}

// The model and what belongs to it, written by rank 0 beside the shards.
void write_model_rest(const fs::path& folder, const Training& training, const Tokenizer& tokenizer,
                      int64_t context) {
  const StoredGeneration& generation = training.generation;
  if (!training.base) {
    save_model_config(*training.model, folder, context, generation.ids_with(tokenizer));
  }
  save_generation(generation, folder);
  tokenizer.save(folder);
}

void write_weights(const fs::path& folder, const Training& training) {
  if (!training.base) {
    return write_tensor_files(folder, kWeights, model_tensors(*training.model));
  }
  const Training::Base& base = *training.base;
  const auto is_part = [&](const Parameter& p) {
    return p.tensor.requires_grad() || base.beyond.contains({p.site, p.role});
  };
  save_adapter(*training.model, base.path, base.layout, is_part, folder);
}

// Throws Error unless the model that was loaded, or the part of it, is of the one that `config`
// describes.
void require_model(const fs::path& folder, const Transformer& loaded, const ModelConfig& config,
                   int64_t vocab_size) {
  const Transformer plan(config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta,
                         loaded.sites(), loaded.parameters().group());
  for (const Parameter& p : plan.parameters().all()) {
    const Parameter* there = loaded.parameters().find(p.site, p.role);
    require(there != nullptr && there->tensor.sizes() == p.tensor.sizes(),
            "{}: {} of site {} does not have the shape that the recipe asks for", folder.string(),
            p.role, p.site);
  }
  // What has no shape, as the base of rotary positions. Compared as files have it: they leave out
  // settings without effect.
  const auto as_saved = [&](const ModelConfig& model) {
    return to_config_json({model, vocab_size, /*context=*/0, {}}, at::kFloat);
  };
  std::string list;
  for (const std::string& difference : differences(as_saved(loaded.config()), as_saved(config))) {
    list += "\n  " + difference;
  }
  require(list.empty(), "{}: its model is not the one that the recipe describes:{}",
          folder.string(), list);
}

// Parameters, and what is shaped like them, whole where this process of a tensor group writes them:
// all of them bring their parts together, one tensor after another, and take turns.
class WholeTensors {
 public:
  explicit WholeTensors(const ParameterRegistry& parameters) : group_(parameters.group()) {}

  // Undefined where another process writes it. All of the group call it, in the same order.
  at::Tensor of(const Parameter& parameter, const at::Tensor& held) {
    if (group_ == nullptr || cut_dimension(parameter) < 0) return held;
    const at::Tensor whole = whole_of_parameter(*group_, parameter, held);
    return turn_++ % group_->part().size == group_->part().rank ? whole : at::Tensor();
  }

 private:
  const TensorGroup* group_;
  int turn_ = 0;
};

NamedTensors weights_to_write(const Transformer& part) {
  WholeTensors whole(part.parameters());
  return model_tensors(part, at::kFloat, {}, [&](const Parameter& parameter) {
    return whole.of(parameter, parameter.tensor.detach());
  });
}

// The parameter of a moment "3.q_proj.first_moment".
const Parameter& parameter_of(const ParameterRegistry& parameters, const std::string& moment) {
  const size_t site = moment.find('.'), name = moment.rfind('.');
  const Parameter* parameter =
      parameters.find(std::stoi(moment.substr(0, site)), moment.substr(site + 1, name - site - 1));
  require(parameter != nullptr, "checkpoint: a moment {} of no parameter", moment);
  return *parameter;
}

NamedTensors moments_to_write(const Training& part) {
  WholeTensors whole(part.model->parameters());
  NamedTensors moments;
  for (const auto& [name, moment] : part.optimizer.state()) {
    const Parameter& parameter = parameter_of(part.model->parameters(), name);
    const at::Tensor numbers = whole.of(parameter, moment);
    if (numbers.defined()) moments.emplace_back(name, numbers);
  }
  return moments;
}

}  // namespace

Training::Training(std::unique_ptr<Transformer> made, const TrainConfig& config)
    : model(std::move(made)), optimizer(*model, config) {}

Training::Training(std::unique_ptr<Transformer> made, const TrainConfig& config,
                   std::vector<UpdateFactors> factors)
    : model(std::move(made)), optimizer(model->parameters(), config, std::move(factors)) {}

void save_checkpoint(const fs::path& folder, const Training& training, const Tokenizer& tokenizer,
                     int64_t context) {
  write_folder(folder, [&](const fs::path& filling) {
    write_weights(filling, training);
    write_tensor_files(filling, kMoments, training.optimizer.state(), Numbers::any);
    write_model_rest(filling, training, tokenizer, context);
    write_state(filling, training);
  });
}

void save_trained(const fs::path& folder, const Training& training, const Tokenizer& tokenizer,
                  int64_t context) {
  write_folder(folder, [&](const fs::path& filling) {
    write_weights(filling, training);
    write_model_rest(filling, training, tokenizer, context);
  });
}

BaseWeights base_weights(const ModelDirectory& from, const ModelConfig& model,
                         const TrainConfig& config) {
  const Transformer shapes(model, from.vocab_size(), /*seed=*/std::nullopt, at::kFloat, at::kMeta);
  const ParameterRegistry& parameters = shapes.parameters();
  const std::vector<UpdateFactors> factors = update_factors(parameters, shapes.sublayers(), config);
  const WeightFormats stored = from.stored_formats();
  WeightFormats::OfWeights kept;
  bool has_large = false, all_frozen = true;
  for (size_t i = 0; i < factors.size(); ++i) {
    const Parameter& p = parameters.all()[i];
    const WeightFormat format = stored.of(p.site, p.role);
    if (format == WeightFormat::f32 || !has_weight_format(p.kind)) continue;
    has_large = true;
    all_frozen = all_frozen && factors[i].rate == 0;
    kept[{p.site, p.role}] = format;
  }
  if (has_large && all_frozen) return {WeightFormats(std::move(kept)), true};
  return {{}, model.lora.rank > 0};
}

void save_checkpoint(const fs::path& folder, const Training& part, const Tokenizer* tokenizer,
                     int64_t context, Communicator& world) {
  const std::vector<HeldTensors> held = {{kWeights, weights_to_write(*part.model)},
                                         {kMoments, moments_to_write(part), Numbers::any}};
  const auto write_rest = [&](const fs::path& filling) {
    write_model_rest(filling, part, *tokenizer, context);
    write_state(filling, part);
  };
  write_sharded_folder(folder, held, write_rest, world);
}

void save_model_folder(const fs::path& folder, const Training& part, const Tokenizer* tokenizer,
                       int64_t context, Communicator& world) {
  const auto write_rest = [&](const fs::path& filling) {
    write_model_rest(filling, part, *tokenizer, context);
  };
  write_sharded_folder(folder, {{kWeights, weights_to_write(*part.model)}}, write_rest, world);
}

TrainingState read_training_state(const fs::path& folder) {
  return read_state(folder);
}

Training load_checkpoint(const fs::path& folder, const ModelConfig& model, int64_t vocab_size,
                         const TrainConfig& config, const ModelPart& part) {
  const StateFile state = read_state(folder);
  const ModelDirectory directory(folder);
  const bool is_adapter = directory.adapter() != nullptr;
  require_saved_together(is_adapter ? directory.adapter()->files() : *directory.files(),
                         state.model_checksum);
  Precision precision = precision_of(config);
  if (is_adapter) precision.weights = base_weights(directory, model, config).formats;
  auto loaded = directory.load(precision, part.sites, part.group);
  require_model(folder, *loaded, model, std::max(vocab_size, loaded->vocab_size()));
  Training training = part.factors.empty() ? Training(std::move(loaded), config)
                                           : Training(std::move(loaded), config, part.factors);
  training.generation = stored_generation(directory);
  if (is_adapter) {
    training.base = {directory.base(), directory.adapter_layout(),
                     directory.beyond_base(*training.model)};
  }
  const TensorFiles moments(folder, kMoments);
  require_saved_together(moments, state.optimizer_checksum);
  std::vector<std::string> names;
  for (const auto& [name, moment] : training.optimizer.state()) {
    const TensorInfo& saved = moments.info(name);
    const ParameterRegistry& parameters = training.model->parameters();
    const std::vector<int64_t> sizes =
        whole_sizes(parameters.part(), parameter_of(parameters, name));
    require(saved.shape == sizes && saved.dtype == moment.scalar_type(),
            "{}: {} has another shape or type than the parameter", moments.what(), name);
    names.push_back(name);
  }
  moments.verify(names, Numbers::any);
  for (const auto& [name, moment] : training.optimizer.state()) {
    if (part.group == nullptr) {
      moments.read_into(name, moment);
    } else {
      const Parameter& parameter = parameter_of(training.model->parameters(), name);
      moment.copy_(part_of_parameter(part.group->part(), parameter, moments.read(name)));
    }
  }
  training.optimizer.updates = state.updates;
  training.state = state;
  return training;
}

}  // namespace attnres
