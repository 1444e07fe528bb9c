// The engine's C interface, as programs meet it that load the library.
#include "attnres/infer/engine_c_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "tests/text/test_files.h"

namespace attnres::engine_c_api_test {
namespace {

using ::testing::AllOf;
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

TEST(EngineCApi, TellsWhatOfTheModelsFilesIsNotRead) {
  void* library = ::dlopen(ATTNRES_BUILD_DIR "/libattnres_engine.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto open = found(library, decltype(&attnres_engine_open){}, "attnres_engine_open");
  const auto notes = found(library, decltype(&attnres_engine_notes){}, "attnres_engine_notes");
  const auto error = found(library, decltype(&attnres_engine_error){}, "attnres_engine_error");
  const auto close = found(library, decltype(&attnres_engine_close){}, "attnres_engine_close");
  const std::filesystem::path model = ATTNRES_SOURCE_DIR "/models/tiny-shakespeare";
  attnres_engine* plain = open(model.c_str(), nullptr);
  ASSERT_NE(plain, nullptr) << error();
  EXPECT_EQ(notes(plain), nullptr);
  close(plain);
  const std::filesystem::path folder = fresh_folder("model");
  std::filesystem::copy(
      model, folder,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  Json config = read_json(folder / "config.json");
  config["bos_token_id"] = 70000;
  write_file(folder / "config.json", config.dump());
  write_file(folder / "generation_config.json", R"({"eos_token_id": 70001})");
  attnres_engine* engine = open(folder.c_str(), nullptr);
  ASSERT_NE(engine, nullptr) << error();
  EXPECT_THAT(notes(engine),
              AllOf(HasSubstr("/config.json: bos_token_id: not read: 70000;"), HasSubstr("\n"),
                    HasSubstr("generation_config.json: eos_token_id: not read: 70001;")));
  close(engine);
  EXPECT_EQ(notes(nullptr), nullptr);
}

}  // namespace
}  // namespace attnres::engine_c_api_test
