// Training, by the program and in this process, and being disturbed at it.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <string>

#include "attnres/data/corpus.h"
#include "attnres/data/train_batches.h"
#include "attnres/support/progress.h"
#include "attnres/text/bytes.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/trainer.h"
#include "tests/app/program.h"
#include "tests/text/test_files.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing {

inline std::string quoted(const std::filesystem::path& path) {
  return fmt::format("'{}'", path.string());
}

// What is held out of a text, by the rule that the README gives: its last 5 %.
inline std::string validation_text(const std::string& text) {
  return text.substr(text.size() - std::llround(0.05 * static_cast<double>(text.size())));
}

// What the first step of a run of seed 1 on the bytes of `data` sees.
inline Batch first_batch(const std::filesystem::path& data, int64_t context, int64_t rows) {
  const Corpus corpus = read_corpus({data});
  Split split = tokenize(split_by_size(corpus, 0.05, context), ByteTokenizer());
  const TrainBatches batches(
      {{TrainingTokens(std::move(split.train.tokens))}},
      {.context = context, .rows = rows, .vocab_size = 256, .end_of_document = 0, .seed = 1});
  return batches.batch(1, 0, rows);
}

// Makes a run that is resumed forget its moments, those whose names hold `part`.
inline void zero_moments(const RunPaths& run, const std::string& part) {
  const Recipe recipe = parse_recipe(read_run_json(run).at("recipe"));
  const auto tokenizer = load_tokenizer(run.last());
  const Training training =
      load_checkpoint(run.last(), recipe.model, tokenizer->vocab_size(), recipe.train);
  for (const auto& [name, moment] : training.optimizer.state()) {
    if (name.find(part) != std::string::npos) moment.zero_();
  }
  save_checkpoint(run.last(), training, *tokenizer, recipe.train.context);
}

// A recipe and a text on disk, to train on again and again.
class Workshop {
 public:
  explicit Workshop(const Json& recipe, const std::string& text = real_text(40000)) {
    write_text(data_, text);
    set_recipe(recipe);
  }

  void set_recipe(const Json& recipe) const { write_text(recipe_, recipe.dump()); }
  const std::filesystem::path& data() const { return data_; }
  std::filesystem::path folder(const std::string& name) const { return base_ / name; }

  // Arguments of `attnres train`, into the folder of that name.
  std::string arguments(const std::string& name, const std::string& more = "") const {
    return "train --threads 1 --recipe " + quoted(recipe_) + " --data " + quoted(data_) +
           " --out " + quoted(folder(name)) + " " + more;
  }
  Result train(const std::string& name, const std::string& more = "") const {
    return run_program(arguments(name, more));
  }
  Result resume(const std::string& name, const std::string& more = "") const {
    return run_program("train --threads 1 --resume --out " + quoted(folder(name)) + " " + more);
  }
  // A run that went through, and its folder.
  RunPaths trained(const std::string& name, const std::string& more = "") const {
    const Result result = train(name, more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return {folder(name)};
  }
  // The same without starting the program.
  TrainSummary train_here(const std::string& name, bool resume = false) const {
    at::set_num_threads(1);
    return attnres::train({.recipe = parse_recipe(read_json(recipe_)),
                           .data = {data_},
                           .out = folder(name),
                           .from = {},
                           .resume = resume});
  }

 private:
  const std::filesystem::path base_ = fresh_folder("workshop");
  const std::filesystem::path data_ = base_ / "text.txt", recipe_ = base_ / "recipe.json";
};

// A process at work, to be disturbed.
class Child {
 public:
  // The program, with `arguments` as the shell takes them.
  explicit Child(const std::string& arguments)
      : Child(Line{"exec '" ATTNRES_PROGRAM "' " + arguments}) {}
  // What a line for sh starts: environment and command.
  static Child of_shell(const std::string& line) { return Child(Line{"exec env " + line}); }
  // A fork of this process that begins a run of the workshop, or goes on with it: quicker to start
  // than the program.
  Child(const Workshop& workshop, const std::string& name, bool resume = false) {
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        workshop.train_here(name, resume);
        ::_exit(0);
      } catch (const std::exception&) {
        ::_exit(1);
      }
    }
  }
  ~Child() {
    if (pid_ > 0) {
      send(SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t id() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  // The exit code, or 128 + the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits until the run logged so many steps; false if the program ended before, or two minutes
  // went by.
  bool wait_for_steps(const RunPaths& run, int64_t steps) const {
    return wait_until([&] { return steps_logged(run) >= steps; });
  }
  // The same of anything.
  template <class Condition>
  bool wait_until(const Condition& holds) const {
    const double end = monotonic_seconds() + 120;
    while (!holds()) {
      siginfo_t info = {};
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == pid_ || monotonic_seconds() > end) return false;
      nap(200);
    }
    return true;
  }
  // What the program wrote on standard error.
  std::string errors() const {
    return std::filesystem::exists(errors_) ? read_file(errors_) : std::string();
  }

  static void nap(int64_t microseconds) {
    const timespec time = {.tv_sec = 0, .tv_nsec = microseconds * 1000};
    ::nanosleep(&time, nullptr);
  }

 private:
  struct Line {
    std::string text;
  };
  explicit Child(const Line& shell) {
    const std::string line = shell.text + " >/dev/null 2>" + quoted(errors_);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
  }

  static inline int children_ = 0;
  const std::filesystem::path errors_ =
      fresh_folder(fmt::format("child {}", ++children_)) / "errors";
  pid_t pid_;
};

struct Disturbed {
  int exit_code;
  std::string errors;
};

// Sends the Child that `start` returns a signal once its run logged `steps`. Should it have
// finished before the signal came, it begins again.
template <class Start>
Disturbed disturb(const RunPaths& run, int64_t steps, int signal, const Start& start) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::filesystem::remove_all(run.folder);
    Child child = start();
    if (child.wait_for_steps(run, steps)) child.send(signal);
    const int exit_code = child.wait();
    if (exit_code != 0) return {exit_code, child.errors()};
  }
  ADD_FAILURE() << "the run always finished before the signal came";
  return {};
}
// Disturbs the program.
inline Disturbed disturb(const Workshop& workshop, const std::string& name, int64_t steps,
                         int signal) {
  return disturb({workshop.folder(name)}, steps, signal,
                 [&] { return Child(workshop.arguments(name)); });
}

}  // namespace attnres::testing
