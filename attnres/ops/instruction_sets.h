// Which instruction set the kernels use. They use the best that the machine has; checks and
// measurements want a certain one.
#pragma once

#include <string>

namespace attnres {

// All kernels of the process use this instruction set while the object lives; `name` is one of
// depth_attention_instruction_sets(). One object at a time, and none made or destroyed while
// kernels run. Throws Error where the machine or the program does not have it.
class InstructionSet {
 public:
  explicit InstructionSet(const std::string& name);
  ~InstructionSet();
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;
};

}  // namespace attnres
