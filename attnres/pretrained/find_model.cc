#include "attnres/pretrained/find_model.h"

#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/gguf_split.h"
#include "attnres/formats/other_files.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/directory_files.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// Finishes or undoes an interrupted write of a run's checkpoint, unless a running training, which
// holds the run's lock, is writing it now.
void repair_checkpoint(const fs::path& checkpoint) {
  const fs::path run = checkpoint.parent_path().parent_path();
  try {
    const FolderLock lock(run);
    recover_folder(checkpoint);
  } catch (const Error&) {
    // In use, or read-only: what stands is used as it is.
  }
}

}  // namespace

fs::path find_model(const fs::path& path) {
  if (is_gguf_file(path)) return path;
  const fs::path folder = fs::weakly_canonical(path);
  const bool is_checkpoint = folder.parent_path().filename() == "checkpoints";
  const bool is_run = path_exists(folder / "checkpoints");
  if (is_checkpoint) repair_checkpoint(folder);
  if (is_run) {
    for (const char* name : {"best", "last"}) repair_checkpoint(folder / "checkpoints" / name);
  }

  require(path_exists(folder), "{}: no such model directory", path.string());
  require(fs::is_directory(folder),
          "{}: is neither a folder nor a GGUF file, expected a model directory or such a file{}",
          path.string(),
          path_exists(folder.parent_path() / kConfigFile)
              ? fmt::format("; did you mean its folder, {}?", folder.parent_path().string())
              : what_a_file_is(folder));
  if (is_adapter_folder(folder)) return path;
  const bool has_config = path_exists(folder / kConfigFile);
  if (has_config && has_tensor_files(folder)) return path;
  for (const char* name : {"best", "last"}) {
    const fs::path checkpoint = path / "checkpoints" / name;
    if (path_exists(checkpoint / kConfigFile) || is_adapter_folder(checkpoint)) return checkpoint;
  }
  // GGUF files are published beside the configuration of what they were made from.
  if (const auto gguf = is_run ? std::nullopt : gguf_in_folder(path)) return *gguf;
  if (has_config) return path;
  require(!is_run, "{}: this run has no checkpoint yet", path.string());
  require(!path_exists(folder / "study.json"),
          "{0}: holds a study, whose runs have a model each; name one of them, {1}/NAME",
          path.string(), (path / "runs").string());
  require(!has_tensor_files(folder),
          "{}: {} is missing, which says what model its weights are of; put it back from where the "
          "folder came from",
          path.string(), kConfigFile);
  fail("{}: not a model directory: it has neither {} nor checkpoints/best{}", path.string(),
       kConfigFile, what_it_holds_instead(folder));
}

}  // namespace attnres
