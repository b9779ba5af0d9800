// Files that must be whole or absent: read at once, written under another name, synced and renamed into place. POSIX only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace girih {

/// Throws io, naming the file and the system's reason. `max_bytes` bounds what is read: more is a fault.
std::string read_file(const std::string& path, std::int64_t max_bytes = std::int64_t{1} << 30);

/// The same for a file that nobody else may have written: regular, not a link, of this process's user, not writable by group or others.
std::string read_own_file(const std::string& path, std::int64_t max_bytes = std::int64_t{1} << 30);

enum class Readers : std::uint8_t { owner, everyone };

/// Writes dir/name so that readers see all of `bytes` or the file that was there before, also after a crash of the machine. Throws io.
void publish_file(const std::string& dir, const std::string& name, std::string_view bytes, Readers readers = Readers::owner);

/// What publish_file() calls the file until it is whole: this, then random characters.
inline constexpr std::string_view kTemporaryPrefix = ".writing-";

/// Creates `dir` and missing parents; new ones are for this user alone (0700) or readable by everyone (0755). Throws io.
void make_dir(const std::string& dir, Readers readers = Readers::owner);

/// Empty where `dir` is a directory of this process's user that nobody else may write into; otherwise what is wrong with it.
std::string fault_of_own_dir(const std::string& dir);

}  // namespace girih
