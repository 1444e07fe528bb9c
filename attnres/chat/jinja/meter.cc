#include "attnres/chat/jinja/meter.h"

namespace attnres::jinja {
namespace {

thread_local Meter* current_meter = nullptr;

}  // namespace

Meter::Meter(const Limits& limits) : limits_(limits), outer_(std::exchange(current_meter, this)) {}
Meter::~Meter() {
  current_meter = outer_;
}

Meter* Meter::current() {
  return current_meter;
}

void Meter::spend(int64_t steps) {
  steps_ += steps;
  require(steps_ <= limits_.steps, "it takes more than {} steps: does it loop without an end?",
          limits_.steps);
}

void Meter::hold(int64_t bytes) {
  held_ += bytes;
  if (held_ <= limits_.held_bytes) return;
  held_ -= bytes;
  fail("its values take more than {} MiB", limits_.held_bytes >> 20);
}

void Meter::check_text(int64_t bytes) const {
  require(bytes <= limits_.text_bytes, "it makes a text of more than {} MiB",
          limits_.text_bytes >> 20);
}

void Meter::enter() {
  if (++depth_ <= limits_.depth) return;
  --depth_;
  fail("it nests {} deep: does a macro call itself without an end?", limits_.depth);
}

void spend(int64_t steps) {
  if (current_meter != nullptr) current_meter->spend(steps);
}

void check_text_bytes(int64_t bytes) {
  if (current_meter != nullptr) current_meter->check_text(bytes);
}

}  // namespace attnres::jinja
