// The verify subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/conformance/verify_operations.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace {

// The largest error of all as a part of its bound, and whose it is.
struct Worst {
  const VerifiedOperation* operation;
  size_t instruction_set;

  double error() const { return operation->errors[instruction_set]; }
  // Any error is infinitely many times as large as a bound of 0.
  double part() const { return error() == 0 ? 0 : error() / operation->bound; }
};

Worst find_worst(const Verification& verification) {
  Worst worst = {&verification.operations.at(0), 0};
  for (const VerifiedOperation& operation : verification.operations) {
    for (size_t i = 0; i < operation.errors.size(); ++i) {
      const Worst candidate = {&operation, i};
      if (candidate.part() > worst.part()) worst = candidate;
    }
  }
  return worst;
}

const VerifiedOperation* find_unequal_bits(const Verification& verification) {
  const auto& all = verification.operations;
  const auto at = std::find_if(all.begin(), all.end(),
                               [](const VerifiedOperation& one) { return !one.same_bits; });
  return at == all.end() ? nullptr : &*at;
}

void print_table(const Verification& verification) {
  fmt::print("{:<39}{:<9}{:>9}", "worst relative error", "", "allowed");
  for (const std::string& name : verification.instruction_sets) fmt::print("{:>13}", name);
  fmt::print("\n");
  for (const VerifiedOperation& operation : verification.operations) {
    fmt::print("{:<39}{:<9}{:>9.0e}", operation.name, operation.storage, operation.bound);
    for (const double error : operation.errors) {
      fmt::print("{:>13}", fmt::format("{:.1e}{}", error, error <= operation.bound ? "" : " !"));
    }
    fmt::print("{}\n", operation.same_bits ? "" : "  other bits on other numbers of threads");
  }
  for (const SkippedOperation& operation : verification.skipped) {
    fmt::print("{:<39}{:<9}skipped: not on this processor\n", operation.name, operation.storage);
  }
  fmt::print("\n");
}

Json as_json(const Verification& verification, bool ok, double seconds) {
  Json operations = Json::array();
  for (const VerifiedOperation& operation : verification.operations) {
    Json errors;
    for (size_t i = 0; i < operation.errors.size(); ++i) {
      const double error = operation.errors[i];  // JSON has no infinity
      errors[verification.instruction_sets[i]] = std::isfinite(error) ? Json(error) : Json();
    }
    operations.push_back({{"operation", operation.name},
                          {"storage", operation.storage},
                          {"bound", operation.bound},
                          {"errors", errors},
                          {"same_bits", operation.same_bits}});
  }
  Json skipped = Json::array();
  for (const SkippedOperation& operation : verification.skipped) {
    skipped.push_back({{"operation", operation.name}, {"storage", operation.storage}});
  }
  return {{"ok", ok},
          {"instruction_sets", verification.instruction_sets},
          {"threads", verification.threads},
          {"seconds", seconds},
          {"operations", operations},
          {"skipped", skipped}};
}

void verify(double bound_factor, bool json) {
  const double start = monotonic_seconds();
  const Verification verification = verify_operations(all_operation_problems(), bound_factor);
  const double seconds = monotonic_seconds() - start;

  const Worst worst = find_worst(verification);
  const VerifiedOperation* unequal = find_unequal_bits(verification);
  const bool ok = worst.part() <= 1 && unequal == nullptr;
  if (json) {
    fmt::print("{}\n", as_json(verification, ok, seconds).dump(2));
  } else {
    print_table(verification);
  }
  const std::string found =
      fmt::format("worst error {:.1e} of {:.1e} allowed ({}, {}, {})", worst.error(),
                  worst.operation->bound, worst.operation->storage,
                  verification.instruction_sets[worst.instruction_set], worst.operation->name);
  require(worst.part() <= 1, "verify: {}", found);
  if (unequal != nullptr) {
    fail("verify: results depend on the number of threads ({}, {})", unequal->storage,
         unequal->name);
  }
  if (json) return;
  fmt::print("verify: ok: {}, {}, same bits for {}{}, {} compared, {} skipped, {:.1f} s\n", found,
             counted(std::ssize(verification.instruction_sets), "instruction set"),
             verification.threads == 1 ? "" : "1 to ", counted(verification.threads, "thread"),
             verification.operations.size(), verification.skipped.size(), seconds);
}

}  // namespace

void add_verify_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "verify",
      "Check the kernels against their formulas on this machine. Computes both, "
      "the formulas in float64 or better, for every instruction set that the "
      "processor has. Takes some seconds, and needs no model.");
  const auto factor = std::make_shared<double>(1);
  const auto json = std::make_shared<bool>(false);
  add_option(command, "--bound-factor X", *factor, "allow X times the usual errors")
      ->check(number(1e-9, 1e9))
      ->capture_default_str();
  command.add_flag("--json", *json, "print JSON");
  command.footer(
      "Errors are relative to the largest magnitude of the same tensor, and at least to a tenth "
      "of\n"
      "that of all results, or of all gradients. What this processor has no products for is "
      "skipped,\n"
      "and counted in the last line.\n"
      "Exit code 1: an error is over its bound, or results depend on the number of threads.\n\n"
      "Example:\n  attnres verify");
  command.callback([factor, json] { verify(*factor, *json); });
}

}  // namespace attnres
