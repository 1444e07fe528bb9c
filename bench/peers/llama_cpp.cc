// llama.cpp reading prompts and decoding greedily, by its C interface: answers the requests of
// bench/compare_llama_cpp, which README.md lists. OMP_NUM_THREADS is its number of threads.
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// A model with one sequence.
class Decoding {
 public:
  Decoding(const std::string& file, std::vector<llama_token> prompt, int tokens, bool defaults,
           bool rearranges)
      : prompt_(std::move(prompt)) {
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    model_params.use_extra_bufts = rearranges;
    model_.reset(llama_model_load_from_file(file.c_str(), model_params));
    if (!model_) throw std::runtime_error("cannot load " + file);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(prompt_.size()) + static_cast<uint32_t>(tokens);
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(std::getenv("OMP_NUM_THREADS"));
    if (!defaults) {
      params.type_k = params.type_v = GGML_TYPE_F32;
      params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw std::runtime_error("cannot make a context for " + file);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
  }

  Json read_prompt() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t done = 0; done < prompt_.size(); done += 512) {
      run(prompt_.data() + done, static_cast<int>(std::min<size_t>(512, prompt_.size() - done)));
    }
    const float largest = *std::max_element(logits(), logits() + vocabulary_);
    return {{"ms", milliseconds_since(begin)}, {"largest", {largest}}};
  }

  Json decode(int tokens) {
    read_prompt();
    Json largest = Json::array();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < tokens; ++i) {
      const float* best = std::max_element(logits(), logits() + vocabulary_);
      largest.push_back(*best);
      auto id = static_cast<llama_token>(best - logits());
      run(&id, 1);
    }
    return {{"ms", milliseconds_since(begin) / tokens}, {"largest", largest}};
  }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };

  void run(llama_token* ids, int count) {
    if (llama_decode(context_.get(), llama_batch_get_one(ids, count)) != 0) {
      throw std::runtime_error("cannot decode");
    }
  }
  const float* logits() const { return llama_get_logits_ith(context_.get(), -1); }

  std::vector<llama_token> prompt_;
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
  int vocabulary_ = 0;
};

void be_quiet(ggml_log_level level, const char* text, void* /*data*/) {
  if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
}

}  // namespace

int main() {
  llama_log_set(be_quiet, nullptr);
  std::map<std::string, Decoding> open;
  for (std::string line; std::getline(std::cin, line);) {
    Json reply = {{"done", true}};
    try {
      const Json request = Json::parse(line);
      if (request.contains("open")) {
        open.try_emplace(request.at("open"), request.at("model").get<std::string>(),
                         request.at("prompt").get<std::vector<llama_token>>(),
                         request.at("tokens").get<int>(), request.value("defaults", false),
                         request.value("rearranges", true));
      } else if (request.contains("prompt")) {
        reply = open.at(request.at("prompt")).read_prompt();
      } else if (request.contains("close")) {
        open.erase(request.at("close"));
      } else {
        reply = open.at(request.at("decode")).decode(request.at("tokens"));
      }
    } catch (const std::exception& e) {
      reply = {{"error", e.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
