// Backwards by hand are not differentiated again; asking for it is an error rather than a zero.
#pragma once

#include <initializer_list>
#include <vector>

namespace torch {
class Library;
}
namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace attnres {

// The Autograd kernel of an operation `NAME_backward`: runs it, and where its results, or what it
// writes to, would need a gradient, that gradient is an Error which names the operation.
void once_differentiable(const c10::OperatorHandle& operation, std::vector<c10::IValue>* stack);

// Registers it for these operations in their library's part for Autograd.
void implement_once_differentiable(torch::Library& autograd,
                                   std::initializer_list<const char*> operations);

// The same for a backward outside the dispatcher: throws Error naming `operation` where a gradient
// of its results would be recorded.
void require_first_derivative(const char* operation);

}  // namespace attnres
