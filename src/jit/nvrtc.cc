// See nvrtc.h. The library stays loaded: it is large to map, and its own threads and exit handlers would outlive a close.
#include "jit/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "jit/sources.h"

namespace girih::jit {
namespace {

namespace fs = std::filesystem;

using Program = void*;
constexpr std::array kFileNames = {"libnvrtc.so.13", "libnvrtc.so.12"};

/// `directory`/lib/python3.*/{site,dist}-packages, where they exist.
void add_site_packages(const fs::path& directory, std::vector<fs::path>& found) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(entry.path() / name, error)) found.push_back(entry.path() / name);
    }
  }
}

/// Where Python wheels may have been unpacked: around this library, the running executable, the virtual environment.
std::vector<fs::path> site_packages(const std::string& virtual_environment) {
  std::vector<fs::path> found;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&bundle_hash), &here) != 0 && here.dli_fname != nullptr) {
    for (fs::path dir = fs::path(here.dli_fname).parent_path(); dir.has_relative_path(); dir = dir.parent_path()) {
      if (dir.filename() == "site-packages" || dir.filename() == "dist-packages") found.push_back(dir);
    }
  }
  if (!virtual_environment.empty()) add_site_packages(virtual_environment, found);
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) add_site_packages(executable.parent_path().parent_path(), found);
  return found;
}

}  // namespace

std::vector<std::string> nvrtc_candidates(const NvrtcSearch& search) {
  std::vector<std::string> paths;
  const auto add_directory = [&paths](const fs::path& directory) {
    std::error_code error;
    for (const char* name : kFileNames) {
      if (fs::exists(directory / name, error)) paths.push_back((directory / name).string());
    }
  };
  if (!search.path.empty()) {
    std::error_code error;
    if (!fs::is_directory(search.path, error)) return {search.path};
    add_directory(search.path);
    if (paths.empty()) paths.push_back((fs::path(search.path) / kFileNames.front()).string());
    return paths;
  }
  paths.assign(kFileNames.begin(), kFileNames.end());
  for (const char* directory : {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/opt/cuda/lib64"}) add_directory(directory);
  for (const fs::path& packages : site_packages(search.virtual_environment)) {
    for (const char* wheel : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) add_directory(packages / wheel);
  }
  return paths;
}

struct Nvrtc::Table {
  const char* (*error_string)(int);
  int (*version)(int*, int*);
  int (*num_supported_archs)(int*);
  int (*supported_archs)(int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, std::size_t*);
  int (*ptx)(Program, char*);

  /// False where one is missing.
  bool resolve(void* library) {
    bool complete = true;
    const auto find = [&](auto& slot, const char* name) {
      slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(library, name));
      complete = complete && slot != nullptr;
    };
    find(error_string, "nvrtcGetErrorString");
    find(version, "nvrtcVersion");
    find(num_supported_archs, "nvrtcGetNumSupportedArchs");
    find(supported_archs, "nvrtcGetSupportedArchs");
    find(create, "nvrtcCreateProgram");
    find(destroy, "nvrtcDestroyProgram");
    find(compile, "nvrtcCompileProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(cubin_size, "nvrtcGetCUBINSize");
    find(cubin, "nvrtcGetCUBIN");
    find(ptx_size, "nvrtcGetPTXSize");
    find(ptx, "nvrtcGetPTX");
    return complete;
  }
};

Nvrtc::Nvrtc(std::unique_ptr<Table> table, std::string path) : table_(std::move(table)), path_(std::move(path)) {}
Nvrtc::~Nvrtc() = default;

std::shared_ptr<const Nvrtc> Nvrtc::load(const NvrtcSearch& search) {
  std::string tried;
  for (const std::string& candidate : nvrtc_candidates(search)) {
    void* library = dlopen(candidate.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", reason == nullptr ? candidate : reason);
      continue;
    }
    auto table = std::make_unique<Table>();
    if (!table->resolve(library)) {
      tried += fmt::format("{}{}: lacks functions of NVRTC 12", tried.empty() ? "" : "; ", candidate);
      continue;
    }
    Dl_info file{};
    const bool known = dladdr(reinterpret_cast<const void*>(table->version), &file) != 0 && file.dli_fname != nullptr;
    std::shared_ptr<Nvrtc> nvrtc(new Nvrtc(std::move(table), known ? file.dli_fname : candidate));
    int major = 0;
    int minor = 0;
    nvrtc->table_->version(&major, &minor);
    nvrtc->version_ = fmt::format("{}.{}", major, minor);
    int count = 0;
    nvrtc->table_->num_supported_archs(&count);
    nvrtc->archs_.resize(static_cast<std::size_t>(count));
    nvrtc->table_->supported_archs(nvrtc->archs_.data());
    std::sort(nvrtc->archs_.begin(), nvrtc->archs_.end());
    return nvrtc;
  }
  fail(Code::unsupported, "jit",
       "no NVRTC (the CUDA run-time compiler): tried {}; install it (pip install nvidia-cuda-nvrtc, or the cuda-nvrtc package of a "
       "toolkit), "
       "or name the library in GIRIH_NVRTC, or use packs",
       tried);
}

NvrtcResult Nvrtc::compile(const std::string& source, const std::string& file_name, const std::vector<std::string>& options,
                           bool ptx) const {
  std::vector<const char*> names;
  std::vector<const char*> texts;
  for (const EmbeddedSource& embedded : embedded_sources()) {
    names.push_back(embedded.name.data());  // literals, so NUL-terminated
    texts.push_back(embedded.text.data());
  }
  std::vector<const char*> arguments;
  arguments.reserve(options.size());
  for (const std::string& option : options) arguments.push_back(option.c_str());

  NvrtcResult result;
  Program program = nullptr;
  int status = table_->create(&program, source.c_str(), file_name.c_str(), static_cast<int>(names.size()), texts.data(), names.data());
  const auto destroy = [this](Program p) { table_->destroy(&p); };
  const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);
  if (status == 0) {
    status = table_->compile(program, static_cast<int>(arguments.size()), arguments.data());
    std::size_t size = 0;
    if (table_->log_size(program, &size) == 0 && size > 1) {
      result.log.resize(size);
      table_->log(program, result.log.data());
      result.log.resize(size - 1);  // its NUL
    }
  }
  std::size_t size = 0;
  if (status == 0) status = ptx ? table_->ptx_size(program, &size) : table_->cubin_size(program, &size);
  if (status == 0) {
    result.image.resize(size);
    status = ptx ? table_->ptx(program, result.image.data()) : table_->cubin(program, result.image.data());
  }
  result.ok = status == 0 && size > 0;
  if (!result.ok) result.error = status == 0 ? "no image was produced" : table_->error_string(status);
  return result;
}

}  // namespace girih::jit
