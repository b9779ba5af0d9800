// See file.h. Every descriptor is checked after it is open, not before, so that nothing can be swapped in between.
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace girih {
namespace {

std::string reason(int number) { return std::generic_category().message(number); }

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  /// Errors of delayed writes surface here.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

std::string fault_of(const struct stat& facts) {
  if (facts.st_uid != geteuid()) return fmt::format("belongs to user {}, not to this one ({})", facts.st_uid, geteuid());
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return fmt::format("has mode {:04o}: others may write it", facts.st_mode & 07777U);
  return {};
}

std::string read(const std::string& path, std::int64_t max_bytes, bool own) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (own ? O_NOFOLLOW : 0)));
  if (file.get() < 0) fail(Code::io, path, "cannot be read: {}", reason(errno));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) fail(Code::io, path, "cannot be read: {}", reason(errno));
  if (!S_ISREG(facts.st_mode)) fail(Code::io, path, "is not a regular file");
  if (own) {
    if (const std::string fault = fault_of(facts); !fault.empty()) fail(Code::io, path, "{}", fault);
  }
  if (facts.st_size > max_bytes) fail(Code::io, path, "has {} bytes; must have at most {}", facts.st_size, max_bytes);
  std::string bytes(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(Code::io, path, "cannot be read: {}", reason(errno));
    if (count == 0) break;  // it has shrunk since
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace

std::string read_file(const std::string& path, std::int64_t max_bytes) { return read(path, max_bytes, false); }
std::string read_own_file(const std::string& path, std::int64_t max_bytes) { return read(path, max_bytes, true); }

void publish_file(const std::string& dir, const std::string& name, std::string_view bytes, Readers readers) {
  const std::string path = fmt::format("{}/{}", dir, name);
  std::string temporary = fmt::format("{}/{}XXXXXX", dir, kTemporaryPrefix);
  Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) fail(Code::io, path, "cannot be written: {}", reason(errno));
  const mode_t mode = readers == Readers::owner ? 0600 : 0644;
  const bool whole = ::fchmod(file.get(), mode) == 0 && write_all(file.get(), bytes) && ::fsync(file.get()) == 0 && file.close() &&
                     ::rename(temporary.c_str(), path.c_str()) == 0;
  if (whole) return;
  const int number = errno;
  ::unlink(temporary.c_str());
  fail(Code::io, path, "cannot be written: {}", reason(number));
}

void make_dir(const std::string& dir, Readers readers) {
  const mode_t mode = readers == Readers::owner ? 0700 : 0755;
  if (::mkdir(dir.c_str(), mode) == 0 || errno == EEXIST) return;
  const int number = errno;
  const std::string parent = std::filesystem::path(dir).parent_path().string();
  if (number != ENOENT || parent.empty() || parent == dir) fail(Code::io, dir, "cannot be created: {}", reason(number));
  make_dir(parent, readers);
  if (::mkdir(dir.c_str(), mode) != 0 && errno != EEXIST) fail(Code::io, dir, "cannot be created: {}", reason(errno));
}

std::string fault_of_own_dir(const std::string& dir) {
  struct stat facts {};
  if (::stat(dir.c_str(), &facts) != 0) return reason(errno);
  if (!S_ISDIR(facts.st_mode)) return "is not a directory";
  return fault_of(facts);
}

}  // namespace girih
