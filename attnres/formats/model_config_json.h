// config.json of a model directory, to and from this program's configuration.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/formats/architectures.h"
#include "attnres/model/config.h"
#include "attnres/support/json.h"

namespace attnres {

// bos_token_id and eos_token_id as config.json holds them: a number, several, or null.
struct DocumentIds {
  Json begin, end;

  DocumentIds() = default;
  // For a tokenizer made here: the end of a document is what the next one begins after.
  // Nothing for -1, where it has none.
  DocumentIds(int64_t id) {
    if (id >= 0) begin = end = id;
  }

  // The tokens at which a document ends.
  std::vector<int64_t> ends() const;
};

// What config.json says of a model.
struct StoredConfig {
  ModelConfig model;
  int64_t vocab_size = 0;
  int64_t context = 0;  // max_position_embeddings
  DocumentIds document_ids;
  FileLayout layout = FileLayout::attnres;
  // Layers behind the model's own that predict further tokens (num_nextn_predict_layers): in the
  // files, and not read.
  int64_t further_layers = 0;
  std::vector<std::string> misspelled = {};  // ConfigKeys::misspelled
  std::vector<std::string> notes = {};       // of what is not read, for people: a sentence each
};

// A token id of a file, several or null, without those that are none of this model: a sentence of
// `notes` has these. `what` names the file and the key.
Json known_ids(const Json& ids, int64_t vocab_size, const std::string& what,
               std::vector<std::string>& notes);

Json to_config_json(const StoredConfig& stored, at::ScalarType dtype);

// Reads every layout; of others' also what other releases of transformers write. Of a model that
// takes images too (text_config, or Qwen2-VL's keys) this is the text model. Keys that do not
// change the function are ignored. Throws Error (`what` names the file) on an unknown model_type, a
// missing key, a wrong type, sizes that do not fit together, and by name on settings that this
// program does not compute: other biases, activations and scalings, quantized weights.
StoredConfig from_config_json(const Json& json, const std::string& what);

}  // namespace attnres
