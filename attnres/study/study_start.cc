#include "attnres/study/study_start.h"

#include "attnres/model/retrofit.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/file.h"

namespace attnres {

std::filesystem::path weights_to_begin_with(const StudyPaths& paths, const StudyRun& run,
                                            const Recipe& before) {
  const std::filesystem::path last = paths.run(run.from).last();
  if (!needs_retrofit(before, run.recipe)) return last;
  const std::filesystem::path start = paths.start(run.name);
  make_folder(start.parent_path());
  const ModelDirectory before_it(last);
  const auto model = retrofit(*before_it.load(), run.recipe.model.depth_mixing);
  save_model_folder_like(start, *model, before_it, run.recipe.train.context);
  return start;
}

}  // namespace attnres
