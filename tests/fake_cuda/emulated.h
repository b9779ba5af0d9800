// Launches on the fake driver that the emulator executes: what a test's Hooks::prepare() makes of them.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "fake_cuda/loaded.h"

namespace girih::fake_cuda {

using Prepared = std::function<void()>;

template <typename Params>
Prepared emulate(const LaunchCall& call, void (*kernel)(Params)) {
  const auto params = *static_cast<const Params*>(call.params);
  const emulator::LaunchOptions options{
      .num_blocks = call.num_blocks, .num_threads = call.num_threads, .shared_bytes = call.shared_bytes, .cluster_size = call.cluster_size};
  return [=] { emulator::launch(kernel, params, options); };
}

/// For Hooks: launches live on, since a graph may execute one long after it was captured.
inline void* keep(Prepared launch) {
  static std::vector<std::unique_ptr<Prepared>> all;
  return all.emplace_back(std::make_unique<Prepared>(std::move(launch))).get();
}
inline void execute(void* prepared) { (*static_cast<Prepared*>(prepared))(); }

/// `prepare` gives what keep() does.
inline void set_emulated_hooks(void* (*prepare)(const LaunchCall& call)) { set_hooks({prepare, execute}); }

}  // namespace girih::fake_cuda
