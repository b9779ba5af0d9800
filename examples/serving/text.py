"""Tokens to text and back: Hugging Face tokenizers of a local folder, or bytes; text as it streams, held back where a stop string may begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

Message = dict[str, str]  # role, content


class Tokenizer(Protocol):
    vocab_size: int
    eos_tokens: frozenset[int]
    allowed: list[int] | None
    """32 tokens a word: those that may be sampled. None: all."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...


def plain_chat(messages: Sequence[Message]) -> str:
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"


class ByteTokenizer:
    """Token i is byte i, 256 begins a text, none ends it. For random weights, which may say printable ASCII only."""

    BOS = 256

    def __init__(self) -> None:
        self.vocab_size = 257
        self.eos_tokens: frozenset[int] = frozenset()
        words = [0] * ((self.vocab_size + 31) // 32)
        for token in range(32, 127):
            words[token // 32] |= 1 << token % 32
        self.allowed: list[int] | None = [word - (1 << 32) if word >> 31 else word for word in words]  # as int32

    def encode(self, text: str) -> list[int]:
        return [self.BOS, *text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.encode(plain_chat(messages))


class FolderTokenizer:
    """tokenizer.json and the chat template of a local folder, through transformers."""

    def __init__(self, folder: Path, eos_tokens: frozenset[int]) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self.vocab_size = len(self._tokenizer)
        own = self._tokenizer.eos_token_id
        self.eos_tokens = eos_tokens or frozenset([] if own is None else [own])
        self.allowed: list[int] | None = None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        if not self._tokenizer.chat_template:
            return self.encode(plain_chat(messages))
        text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer.encode(text, add_special_tokens=False))  # the template writes them


class TextStream:
    """The text of a growing list of tokens, in pieces that are never taken back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens: list[int] = []
        self._shown = self._read = 0  # tokens whose text has been taken: decoded again as context, and all of them
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is now certain. Sets `stopped` once a stop string has come, which is cut off with what follows."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._shown : self._read])
        after = self._tokenizer.decode(self._tokens[self._shown :])
        if not after.endswith("\ufffd"):  # else within a character
            self._held += after[len(before) :]
            self._shown, self._read = self._read, len(self._tokens)
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return self._take(min(found))
        return self._take(len(self._held) - self._possible_stop())

    def finish(self) -> str:
        """What is left when no more tokens come."""
        before = self._tokenizer.decode(self._tokens[self._shown : self._read])
        after = self._tokenizer.decode(self._tokens[self._shown :])
        self._held += after[len(before) :]
        return "" if self.stopped else self._take(len(self._held))

    def _possible_stop(self) -> int:
        """Length of the longest end of what is held that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text
