// The engine's C interface, as programs meet it that load the library.
#include "attnres/infer/engine_c_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>

namespace attnres::engine_c_api_test {
namespace {

using ::testing::HasSubstr;

// A function of the library, by the type that its header gives it.
template <class Function>
Function* found(void* library, Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

TEST(EngineCApi, RefusesIdsOutsideTheVocabulary) {
  void* library = ::dlopen(ATTNRES_BUILD_DIR "/libattnres_engine.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto open = found(library, decltype(&attnres_engine_open){}, "attnres_engine_open");
  const auto request_default =
      found(library, decltype(&attnres_request_default){}, "attnres_request_default");
  const auto submit = found(library, decltype(&attnres_engine_submit){}, "attnres_engine_submit");
  const auto error = found(library, decltype(&attnres_engine_error){}, "attnres_engine_error");
  const auto close = found(library, decltype(&attnres_engine_close){}, "attnres_engine_close");
  attnres_engine* engine = open(ATTNRES_SOURCE_DIR "/models/tiny-shakespeare", nullptr);
  ASSERT_NE(engine, nullptr) << error();
  attnres_request request = request_default();
  for (const int32_t bad : {-1, 1 << 30}) {
    const std::array<int32_t, 2> ids = {1, bad};
    request.ids = ids.data();
    request.num_ids = ids.size();
    EXPECT_LT(submit(engine, &request), 0);
    EXPECT_THAT(error(), HasSubstr("token id " + std::to_string(bad) + " is out of range"));
  }
  const std::array<int32_t, 2> ids = {1, 2};
  request.ids = ids.data();
  EXPECT_EQ(submit(engine, &request), 0);
  close(engine);
}

}  // namespace
}  // namespace attnres::engine_c_api_test
