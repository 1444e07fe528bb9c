// Models of which two processes of a tensor group have a part each.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"

namespace attnres::testing {

// A process of a tensor group, of what it loads by itself.
class OneOfAGroup : public TensorGroup {
 public:
  using TensorGroup::TensorGroup;
  at::Tensor all_gather(const at::Tensor&, int64_t) const override { fail("nobody else is there"); }
  at::Tensor reduce_scatter(const at::Tensor&) const override { fail("nobody else is there"); }
};

// That processes have the bits of the whole: rows, columns of whole blocks, experts' too.
inline void expect_parts(const std::filesystem::path& path, const Precision& precision) {
  const auto whole = load_model(path, precision);
  int cut = 0;
  for (const int rank : {0, 1}) {
    const OneOfAGroup group({rank, 2});
    const auto part = load_model(path, precision, {}, &group);
    EXPECT_EQ(part->parameters().all().size(), whole->parameters().all().size());
    for (const Parameter& own : part->parameters().all()) {
      const Parameter& of_whole = *whole->parameters().find(own.site, own.role);
      const bool is_packed = own.packed.defined();
      ASSERT_EQ(is_packed, of_whole.packed.defined()) << own.role;
      cut += is_packed && cut_dimension(own) >= 0 ? 1 : 0;
      const auto numbers = [&](const Parameter& p) {
        return is_packed ? p.packed.bytes : p.tensor.detach();
      };
      EXPECT_EQ(own.packed.format, of_whole.packed.format) << own.role;
      EXPECT_TRUE(numbers(own).equal(part_of_parameter(group.part(), own, numbers(of_whole))))
          << own.role << " of site " << own.site;
    }
  }
  EXPECT_GE(cut, 2 * 10);
}

}  // namespace attnres::testing
