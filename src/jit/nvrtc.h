// NVIDIA's run-time compiler as found at run time: the search, and a typed table of the functions used. Nothing of the toolkit but
// libnvrtc itself is needed. Searched, in this order: the path given (then nothing else); the loader's own path; the places where
// toolkits install; the Python wheel nvidia-cuda-nvrtc in the site-packages of this library, of the running executable or of the active
// virtual environment.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace girih::jit {

struct NvrtcResult {
  bool ok = false;
  std::string error;  // NVRTC's name of the failure
  std::string log;
  std::string image;  // cubin, or PTX with its NUL
};

struct NvrtcSearch {
  std::string path;                 // a library file or a directory that holds one; empty = search
  std::string virtual_environment;  // root of a Python environment to look into, or empty
};

/// What load() gives the loader, in order: names to be searched for, and files that exist.
std::vector<std::string> nvrtc_candidates(const NvrtcSearch& search);

class Nvrtc {
 public:
  /// Throws unsupported with everything that was tried.
  static std::shared_ptr<const Nvrtc> load(const NvrtcSearch& search);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  const std::string& path() const { return path_; }         // of the file that the loader took
  const std::string& version() const { return version_; }   // "13.0"
  const std::vector<int>& archs() const { return archs_; }  // compute capabilities that it compiles for, ascending

  /// `file_name` is what messages call the source. `ptx`: the options ask for a virtual architecture. From any thread.
  NvrtcResult compile(const std::string& source, const std::string& file_name, const std::vector<std::string>& options, bool ptx) const;

 private:
  struct Table;
  Nvrtc(std::unique_ptr<Table> table, std::string path);
  std::unique_ptr<Table> table_;
  std::string path_;
  std::string version_;
  std::vector<int> archs_;
};

}  // namespace girih::jit
