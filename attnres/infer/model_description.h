// What a model is, for those who look at it from outside. No tensor library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/infer/generation_settings.h"

namespace attnres {

// A site that weighs what it reads.
struct DepthSite {
  int site = 0;      // 0 .. L; L is the output
  std::string name;  // "attention 1", "feed-forward 1", ..., "output"
  std::vector<std::string> sources;
};

struct ModelDescription {
  std::string name;  // of its folder or file
  int64_t parameters = 0;
  int64_t layers = 0;  // of attention and feed-forward
  int64_t width = 0;
  int64_t vocabulary = 0;
  std::string mechanism = {};        // that mixes over depth
  std::string tokenizer = {};        // its kind; empty where it is not read here
  std::string chat_template = {};    // "jinja", or "plain" without one; empty: it cannot be read
  std::string begin_of_text = {};    // the token's name, "<s>"; empty without one
  std::string end_of_document = {};  // the token's text; often none
  std::vector<DepthSite> sites;      // that have depth weights
  // With what the model's generation_config.json says, which `sampling_said` tells; it is empty
  // where the file says nothing.
  SamplingSettings sampling = {};
  std::string sampling_said = {};
  std::string chat_template_error = {};      // why it cannot be read
  std::vector<std::string> chat_names = {};  // that the chat template reads, variables among them
};

}  // namespace attnres
