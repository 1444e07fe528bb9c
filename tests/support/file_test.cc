#include "attnres/support/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres::file_test {
namespace {
namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  Files() : folder_(fs::path(::testing::TempDir()) / "files") {
    fs::remove_all(folder_);
    make_folder(folder_);
  }

  // The names in the folder.
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      all.insert(entry.path().filename().string());
    }
    return all;
  }

  // A folder as write_folder leaves it, or part of one.
  void put(const std::string& name, const std::string& text, bool whole = true) {
    make_folder(folder_ / name);
    write_file(folder_ / name / "a", text);
    if (whole) write_file(folder_ / name / "b", text);
  }

  void expect_holds(const std::string& text) {
    EXPECT_EQ(read_file(folder_ / "x" / "a"), text);
    EXPECT_EQ(read_file(folder_ / "x" / "b"), text);
    EXPECT_EQ(names(), std::set<std::string>{"x"});
  }

  const fs::path folder_;
};

std::function<void(const fs::path&)> filling_with(const std::string& text) {
  return [text](const fs::path& folder) {
    write_file(folder / "a", text);
    write_file(folder / "b", text);
  };
}

using Folder = Files;
using Lock = Files;

TEST_F(Files, RoundTripOfAnyBytes) {
  const std::string text("a\0\xff\r\n", 5);
  write_file(folder_ / "f", "longer than what follows");
  write_file(folder_ / "f", text);
  EXPECT_EQ(read_file(folder_ / "f"), text);
  write_file(folder_ / "f", "");
  EXPECT_EQ(read_file(folder_ / "f"), "");
  EXPECT_EQ(names(), std::set<std::string>{"f"});
}

TEST_F(Files, ErrorsAndNothingLeftBehind) {
  EXPECT_THROW(read_file(folder_ / "missing"), Error);
  EXPECT_THROW(read_file(folder_), Error);
  EXPECT_THROW(write_file(folder_ / "missing" / "f", "x"), Error);
  make_folder(folder_ / "taken");
  write_file(folder_ / "taken" / "f", "x");
  EXPECT_THROW(write_file(folder_ / "taken", "x"), Error);
  EXPECT_EQ(names(), std::set<std::string>{"taken"});
  EXPECT_THROW(make_folder(folder_ / "taken" / "f"), Error);
}

// None of these ends by itself: a pipe that nobody writes to, a device without end.
TEST_F(Files, OnlyFilesAreRead) {
  const auto refusal = [](const fs::path& path) {
    try {
      read_file(path);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder_ / "zeros");
  fs::create_symlink(folder_ / "f", folder_ / "link");
  write_file(folder_ / "f", "text");
  EXPECT_EQ(refusal(folder_), folder_.string() + ": is a folder, expected a file");
  EXPECT_EQ(refusal(folder_ / "pipe"),
            (folder_ / "pipe").string() + ": is a pipe, expected a file");
  EXPECT_EQ(refusal(folder_ / "zeros"),
            (folder_ / "zeros").string() + ": is a device, expected a file");
  EXPECT_EQ(refusal(folder_ / "missing"), (folder_ / "missing").string() + ": no such file");
  EXPECT_EQ(read_file(folder_ / "link"), "text");
}

// The kernel's own files say that they have 0 bytes.
TEST_F(Files, AreReadToTheirEnd) {
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);
}

// A limit on the size of files stands for a full disk: both make a write fail half way.
TEST_F(Files, SaysWhetherAFolderCanBeWritten) {
  const auto refusal = [](const fs::path& path) -> std::string {
    try {
      require_writable_folder(path);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(folder_), "");
  EXPECT_EQ(refusal(folder_ / "a" / "b/"), "");
  EXPECT_EQ(names(), std::set<std::string>());
  write_file(folder_ / "file", "text");
  for (const fs::path& path : {folder_ / "file", folder_ / "file/a/b", fs::path("/proc/a/b")}) {
    EXPECT_NE(refusal(path).find(path.string() + ": cannot make this folder: "), std::string::npos);
  }
  EXPECT_NE(refusal(folder_ / "file").find("it is a file; name another"), std::string::npos);
  EXPECT_NE(refusal(folder_ / "file/a").find((folder_ / "file").string() + " is a file"),
            std::string::npos);
  EXPECT_EQ(existing_part(folder_ / "a" / "b"), folder_);
  EXPECT_EQ(existing_part("/nowhere at all/b"), "/");
}

TEST_F(Files, FullDiskLeavesTheOldFile) {
  write_file(folder_ / "f", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file(folder_ / "f", std::string(5000, 'x'));
      ::_exit(0);
    } catch (const Error&) {
      ::_exit(7);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(names(), std::set<std::string>{"f"});
}

TEST_F(Folder, IsReplaced) {
  write_folder(folder_ / "x", filling_with("old"));
  expect_holds("old");
  write_folder(folder_ / "x", filling_with("new"));
  expect_holds("new");
}

// `x/` is not hidden in `x/.new`.
TEST_F(Folder, NeedsAName) {
  for (const char* path : {"x/", "x/.", "x/..", "."}) {
    EXPECT_THROW(write_folder(folder_ / path, filling_with("new")), Error) << path;
    EXPECT_THROW(write_file(folder_ / path, "new"), Error) << path;
  }
  EXPECT_THROW(write_folder("", filling_with("new")), Error);
  EXPECT_TRUE(names().empty());
}

TEST_F(Folder, StandsWhenWritingThrows) {
  write_folder(folder_ / "x", filling_with("old"));
  EXPECT_THROW(write_folder(folder_ / "x",
                            [](const fs::path& folder) {
                              write_file(folder / "a", "new");
                              throw std::runtime_error("no");
                            }),
               std::runtime_error);
  expect_holds("old");
}

// Every state that a kill can leave behind, in the order in which write_folder goes through them.
TEST_F(Folder, RecoversFromBeingKilledWhileFilling) {
  put("x", "old");
  put("x.part", "new", /*whole=*/false);
  recover_folder(folder_ / "x");
  expect_holds("old");
}

TEST_F(Folder, RecoversFromBeingKilledOnceComplete) {
  put("x", "old");
  put("x.new", "new");
  recover_folder(folder_ / "x");
  expect_holds("new");
}

TEST_F(Folder, RecoversFromBeingKilledBetweenTheRenames) {
  put("x.old", "old");
  put("x.new", "new");
  recover_folder(folder_ / "x");
  expect_holds("new");
}

TEST_F(Folder, RecoversFromBeingKilledBeforeTidying) {
  put("x", "new");
  put("x.old", "old", /*whole=*/false);
  recover_folder(folder_ / "x");
  expect_holds("new");
}

TEST_F(Folder, RecoversFromBeingKilledBeforeTheFirstWasComplete) {
  put("x.part", "new", /*whole=*/false);
  recover_folder(folder_ / "x");
  EXPECT_TRUE(names().empty());
}

// A recovery can be killed too: x.old is left from an earlier kill, and x is complete.
TEST_F(Folder, RecoversFromAKilledRecovery) {
  put("x", "older");
  put("x.old", "oldest");
  put("x.new", "new");
  recover_folder(folder_ / "x");
  expect_holds("new");
}

TEST_F(Folder, WritingRecoversFirst) {
  put("x.old", "old");
  put("x.new", "new");
  write_folder(folder_ / "x", filling_with("newest"));
  expect_holds("newest");
}

// A child writes versions 1, 2, ... and reports each that is done; it is killed at many moments.
TEST_F(Folder, SurvivesSigkill) {
  constexpr int kKills = 40;
  const RandomStream random(1, "kill");
  write_folder(folder_ / "x", filling_with("0"));
  int last_seen = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    int done[2];
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int version = last_seen + 1;; ++version) {
        write_folder(folder_ / "x", filling_with(std::to_string(version)));
        if (::write(done[1], &version, sizeof version) < 0) ::_exit(1);
      }
    }
    ::close(done[1]);
    // Wait for one version, so that the kill falls somewhere into the writing of a later one.
    int reported = 0;
    ASSERT_EQ(::read(done[0], &reported, sizeof reported), ssize_t{sizeof reported});
    const uint64_t spin = random.below(300000, kill);
    for (std::atomic<uint64_t> i = 0; i < spin; ++i) {
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (int version = 0; ::read(done[0], &version, sizeof version) > 0;) reported = version;
    ::close(done[0]);

    recover_folder(folder_ / "x");
    const std::string text = read_file(folder_ / "x" / "a");
    expect_holds(text);
    last_seen = std::stoi(text);
    EXPECT_GE(last_seen, reported) << "a version that was done is gone";
    EXPECT_LE(last_seen, reported + 1);
  }
}

TEST_F(Lock, IsExclusiveBetweenProcesses) {
  // The exit code of a child that tries to lock: 0 if it got the lock.
  const auto try_in_child = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const FolderLock lock(folder_);
        ::_exit(0);
      } catch (const Error&) {
        ::_exit(7);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  {
    const FolderLock lock(folder_);
    EXPECT_EQ(try_in_child(), 7);
  }
  EXPECT_EQ(try_in_child(), 0);
}

// Each child adds 1 to a number in a file, many times over: where two of them hold the lock, an
// addition is lost.
TEST_F(Lock, OfAPathIsHeldByOne) {
  constexpr int kChildren = 4, kSteps = 150;
  const auto add_one = [&] {
    const int number = std::stoi(read_file(folder_ / "number"));
    std::ofstream(folder_ / "number") << number + 1;
  };
  std::ofstream(folder_ / "number") << 0;
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int done = 0; done < kSteps;) {
      try {
        const PathLock lock(folder_ / "x");
        add_one();
        ++done;
      } catch (const Error&) {  // another child holds it
      }
    }
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  EXPECT_EQ(std::stoi(read_file(folder_ / "number")), kChildren * kSteps);
  EXPECT_EQ(names(), std::set<std::string>{"number"});
}

// Two writers of one file would write into each other's.
TEST_F(Lock, OfAFileThatIsBeingWritten) {
  write_file(folder_ / "f.new", "left by a process that was killed");
  {
    AtomicWriter first(folder_ / "f");
    first.write("first", 5);
    EXPECT_THROW(AtomicWriter{folder_ / "f"}, Error);
    first.finish();
  }
  EXPECT_EQ(read_file(folder_ / "f"), "first");
  write_file(folder_ / "f", "second");
  EXPECT_EQ(read_file(folder_ / "f"), "second");
  EXPECT_EQ(names(), std::set<std::string>{"f"});
}

TEST_F(Lock, OfAPathSurvivesItsProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    new PathLock(folder_ / "x");
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder_ / "x.lock"));
  {
    const PathLock lock(folder_ / "x");
    EXPECT_THROW(PathLock{folder_ / "x"}, Error);
    EXPECT_NO_THROW(PathLock{folder_ / "y"});
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(Lock, EndsWithItsProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    new FolderLock(folder_);
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(FolderLock{folder_});
}

TEST_F(Files, TakeNoOthersPlace) {
  const fs::path pipe = folder_ / "pipe", text = folder_ / "text", link = folder_ / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(write_file(pipe, "page"), Error);
  EXPECT_THROW(rewrite_file(pipe, "page"), Error);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_THROW(write_file(folder_, "page"), Error);

  rewrite_file(text, "<!DOCTYPE html>1");
  rewrite_file(text, "<!DOCTYPE html>2");
  EXPECT_EQ(read_file(text), "<!DOCTYPE html>2");
  EXPECT_THROW(rewrite_file(text, "run,step,loss"), Error);
  write_file(text, "<!");
  EXPECT_THROW(rewrite_file(text, "<!DOCTYPE html>3"), Error);
  EXPECT_EQ(read_file(text), "<!");

  fs::create_symlink(text, link);
  write_file(link, "through it");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_file(text), "through it");
}

// What the system says, not what the library found on its way.
TEST_F(Files, SayWhyThereIsNoFolder) {
  const uid_t own = ::geteuid();
  constexpr uid_t kNobody = 65534;  // root may write everywhere
  fs::permissions(folder_, fs::perms(0555));
  if (own == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  try {
    require_writable_folder(folder_ / "run");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Permission denied"), std::string::npos);
  }
  ASSERT_EQ(::seteuid(own), 0);
  fs::permissions(folder_, fs::perms::owner_all);
}

}  // namespace
}  // namespace attnres::file_test
