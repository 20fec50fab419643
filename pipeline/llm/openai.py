"""Chat with any service that speaks OpenAI's protocol, through the official client."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit, urlunsplit

from pipeline import identity, pricing, registry
from pipeline.contracts import Completion, Usage
from pipeline.errors import BadRequest, BrokenContract, PipelineError, Unavailable
from pipeline.http import check_address, error_word, failure, is_loopback, quiet, reach_hint, shown
from pipeline.llm.providers import PROVIDERS, Provider
from pipeline.pricing import Price
from pipeline.protocols import Generation, Limiter, Service, Unlimited
from pipeline.settings import Settings

if TYPE_CHECKING:
    from openai import Omit, OpenAI, Stream
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

SETTING = "DUJIANG_LLM"
PATIENCE_S = 5.0
"""Somebody waits for the answer: rather a little later than not at all."""
FORMS = ("json_schema", "json_object", "")
"""Of a structured answer, the strictest first; the last one asks in words only."""
ANSWER_TOKENS = 500
"""What an answer is taken to have until the service has counted it."""


def build(settings: Settings, limiter: Limiter | None = None) -> OpenAILLM:
    """A reader for ``provider:MODEL``; connects at first use.

    Raises BadRequest when the provider has no address of its own and the settings name none.
    """
    name, model = registry.split(settings.llm)
    provider, address = _place(name, settings)
    price = pricing.load(settings.prices).of(f"{name}:{model}")
    return OpenAILLM(name, model, provider, address, api_key=settings.llm_api_key, timeout_s=settings.request_timeout_s, limiter=limiter, price=price)


def service(settings: Settings) -> Service:
    """Whose limits count, and which. Raises like `build`."""
    name, _ = registry.split(settings.llm)
    _, address = _place(name, settings)
    return Service(
        part="llm",
        provider=name,
        shown=f"{name} at {shown(address)}",
        credential=f"{address} {settings.llm_api_key}",
        rps=settings.llm_rps,
        tpm=settings.llm_tpm,
        concurrency=settings.llm_concurrency,
    )


def _place(name: str, settings: Settings) -> tuple[Provider, str]:
    registry.find(dict.fromkeys(PROVIDERS, "pipeline.llm.openai:build"), name, what="llm")
    address = settings.llm_base_url or PROVIDERS[name].base_url
    if not address:
        raise BadRequest(f"the LLM {name!r} needs an address", hint=f"Set {SETTING}_BASE_URL.", code="bad_setting")
    return PROVIDERS[name], address


class OpenAILLM:
    """One model at one service. `timeout_s` is the longest silence: before the answer, or between two pieces of a stream."""

    def __init__(
        self,
        service: str,
        model: str,
        provider: Provider,
        base_url: str,
        *,
        api_key: str = "",
        timeout_s: float = 60.0,
        limiter: Limiter | None = None,
        price: Price | None = None,
    ) -> None:
        self._limiter = limiter or Unlimited()
        self.name = f"{service}:{model}"
        self.revision = identity.fingerprint({"name": self.name, "address": shown(base_url)})[:12]
        self.address = shown(base_url)
        self._service = service
        self._model = model
        self._provider = provider
        self._base_url = check_address(base_url, SETTING)
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._price = price
        # another server behind an "openai" address knows the old name only
        self._limit_key = provider.limit_key if base_url == provider.base_url or not provider.base_url else "max_tokens"
        self._with_usage = True
        self._form = FORMS[0]
        self._lock = threading.Lock()
        self._opened: OpenAI | None = None
        self._pid = 0

    def complete(self, messages: Sequence[tuple[str, str]], options: Generation) -> Completion:
        """See the protocol. `text` is empty when the model ends without text, which `finish_reason` then explains."""
        with self._limiter.request(tokens=_about(messages, options), patience_s=PATIENCE_S) as permit:
            with self._typed():
                answer = self._create(messages, options)
            completion = self._completion(answer)
            permit.used(completion.usage.total_tokens)
        return completion

    def _create(self, messages: Sequence[tuple[str, str]], options: Generation) -> ChatCompletion:
        """Asks for JSON in the strictest form that the service takes; a form that it refuses, and a weaker one not, is never asked for again."""
        from openai import BadRequestError, UnprocessableEntityError

        forms = FORMS[FORMS.index(self._form) :] if options.schema is not None else FORMS[-1:]
        for form in forms:
            try:
                answer = self._client().chat.completions.create(
                    model=self._model, messages=_roles(messages), extra_body=self._options(options, form), extra_headers=self._headers()
                )
            except (BadRequestError, UnprocessableEntityError):
                if form == forms[-1]:
                    raise
                continue
            if options.schema is not None:
                self._form = form
            return answer
        raise AssertionError("there is always a last form")

    def stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Iterator[str | Completion]:
        """See the protocol. Closing the iterator ends the request."""
        pieces: list[str] = []
        model, finish, usage = "", "", Usage(requests=1)
        with self._limiter.request(tokens=_about(messages, options), patience_s=PATIENCE_S) as permit:
            with self._typed(), self._open_stream(messages, options) as chunks:
                for chunk in chunks:
                    piece, ended = self._delta(chunk)
                    model, finish = chunk.model or model, ended or finish
                    usage = self._spent(chunk.usage) if chunk.usage else usage
                    if piece:
                        pieces.append(piece)
                        yield piece
            permit.used(usage.total_tokens)
        if not model and not pieces:
            raise self._broken("a stream without pieces")
        if not finish:
            raise self._unavailable("ended its stream before the answer was whole", "connection_lost")
        yield Completion("".join(pieces), model or self._model, usage, finish)

    def close(self) -> None:
        """Close kept connections."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _open_stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Stream[ChatCompletionChunk]:
        """Asks for usage with the stream; a service that refuses the question is asked once more without, then never again."""
        from openai import BadRequestError, UnprocessableEntityError

        def start() -> Stream[ChatCompletionChunk]:
            extra = self._options(options)
            if self._with_usage:
                extra["stream_options"] = {"include_usage": True}
            return self._client().chat.completions.create(
                model=self._model, messages=_roles(messages), stream=True, extra_body=extra, extra_headers=self._headers()
            )

        try:
            return start()
        except (BadRequestError, UnprocessableEntityError):
            if not self._with_usage:
                raise
            self._with_usage = False
        try:
            return start()
        except (BadRequestError, UnprocessableEntityError):
            # it was something else that was refused
            self._with_usage = True
            raise

    def _delta(self, chunk: ChatCompletionChunk) -> tuple[str, str]:
        """(piece, finish_reason) of a chunk, either empty. The client hands on whatever it could not read as this type."""
        from openai.types.chat import ChatCompletionChunk
        from openai.types.chat.chat_completion_chunk import Choice

        if not isinstance(cast("object", chunk), ChatCompletionChunk):
            raise self._broken("a piece that is not in OpenAI's form")
        if not chunk.choices:
            return "", ""
        choice = chunk.choices[0]
        if not isinstance(cast("object", choice), Choice):
            raise self._broken("a piece that is not in OpenAI's form")
        piece = choice.delta.content if choice.delta else ""
        if piece is not None and not isinstance(cast("object", piece), str):
            raise self._broken("a piece whose content is not text")
        return piece or "", choice.finish_reason or ""

    def _options(self, options: Generation, form: str = "") -> dict[str, object]:
        given = {"temperature": options.temperature, "top_p": options.top_p, self._limit_key: options.max_tokens}
        found: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        if form == "json_schema":
            found["response_format"] = {"type": form, "json_schema": {"name": "answer", "schema": dict(options.schema or {})}}
        elif form:
            found["response_format"] = {"type": form}
        return found

    def _headers(self) -> dict[str, str | Omit]:
        """The client always sends a key of its own accord; a server without one may refuse any."""
        from openai import Omit

        if self._api_key and not self._provider.key_header:
            return {}
        return {"Authorization": Omit(), **({self._provider.key_header: self._api_key} if self._api_key else {})}

    def _completion(self, answer: ChatCompletion) -> Completion:
        from openai.types.chat import ChatCompletion
        from openai.types.chat.chat_completion import Choice

        # the client hands on whatever it could not read as this type
        if not isinstance(cast("object", answer), ChatCompletion) or not answer.choices:
            raise self._broken("an answer without choices")
        choice = answer.choices[0]
        if not isinstance(cast("object", choice), Choice):
            raise self._broken("an answer that is not in OpenAI's form")
        text = choice.message.content if choice.message else None
        if text is not None and not isinstance(cast("object", text), str):
            raise self._broken("an answer whose content is not text")
        usage = self._spent(answer.usage) if answer.usage else Usage(requests=1)
        return Completion(text or "", answer.model or self._model, usage, choice.finish_reason or "stop")

    def _spent(self, given: CompletionUsage) -> Usage:
        return self._price.of(_usage(given)) if self._price else _usage(given)

    @contextmanager
    def _typed(self) -> Generator[None]:
        """Turns the client's exceptions into ours; they are not chained, because theirs quote bodies."""
        import openai

        try:
            yield
        except openai.APITimeoutError:
            raise self._unavailable(f"did not answer within {self._timeout_s:g} s", "timeout") from None
        except openai.APIConnectionError:
            raise self._unavailable("could not be reached or broke off the connection", "unreachable") from None
        except openai.APIStatusError as error:
            raise self._refused(error.status_code, error.response.headers, error.body) from None
        except openai.APIError as error:
            raise self._in_stream(error.body) from None
        except (JSONDecodeError, UnicodeDecodeError, openai.OpenAIError):
            raise self._broken("an answer that is not in OpenAI's form") from None

    def _refused(self, status: int, headers: object, body: object) -> PipelineError:
        from collections.abc import Mapping

        word = error_word(body)
        return failure(status, cast("Mapping[str, str]", headers), code="" if self._is_secret(word) else word, service=self._where(), setting=SETTING)

    def _in_stream(self, body: object) -> PipelineError:
        """An error event in a stream that began with 200, or an answer that the client found invalid."""
        word = error_word(body)
        if not word:
            return self._broken("an answer that is not in OpenAI's form")
        status = {"rate_limit_exceeded": 429, "rate_limit_error": 429, "429": 429, "invalid_api_key": 401}.get(word, 503)
        return failure(status, {}, code="" if self._is_secret(word) else word, service=self._where(), setting=SETTING)

    def _is_secret(self, word: str) -> bool:
        return bool(self._api_key) and self._api_key in word

    def _client(self) -> OpenAI:
        opened = self._opened
        if opened is not None and self._pid == os.getpid():
            return opened
        with self._lock:
            if self._opened is None or self._pid != os.getpid():
                self._opened, self._pid = self._open(), os.getpid()
            return self._opened

    def _open(self) -> OpenAI:
        import openai

        quiet("openai", "httpx", "httpx2", "httpcore", "httpcore2")
        parts = urlsplit(self._base_url)
        if self._api_key:
            # the HTTP client would make basic authentication of a user name, in place of the key
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        return openai.OpenAI(
            api_key=self._api_key or "none",
            base_url=urlunsplit(parts._replace(query="", fragment="")),
            default_query=_query(parts.query),
            default_headers={"User-Agent": "dujiang"},
            timeout=self._timeout_s,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(
                trust_env=not is_loopback(self._base_url), verify=parts.scheme == "https", follow_redirects=False, timeout=self._timeout_s
            ),
        )

    def _where(self) -> str:
        return f"{self._service} at {self.address}"

    def _unavailable(self, what: str, code: str) -> Unavailable:
        return Unavailable(f"{self._where()} {what}", dependency=True, code=code, hint=reach_hint(self.address, SETTING))

    def _broken(self, what: str) -> BrokenContract:
        return BrokenContract(
            f"{self._where()} sent {what} (model {self._model})",
            hint=f"Check the model and the server behind {SETTING}_BASE_URL.",
            code="bad_completion",
        )


def _query(text: str) -> dict[str, object]:
    from urllib.parse import parse_qsl

    return dict(parse_qsl(text))


def _roles(messages: Sequence[tuple[str, str]]) -> list[ChatCompletionMessageParam]:
    # half of a surrogate pair cannot be sent as JSON
    return cast("list[ChatCompletionMessageParam]", [{"role": role, "content": text.encode("utf-8", "replace").decode()} for role, text in messages])


def _usage(given: CompletionUsage) -> Usage:
    """Some services send null where the type promises a number."""
    prompt, completion, total = (cast("int | None", value) for value in (given.prompt_tokens, given.completion_tokens, given.total_tokens))
    return Usage(prompt, completion, total, requests=1, cached_tokens=_cached(given))


def _cached(given: CompletionUsage) -> int | None:
    """OpenAI's place for it, or DeepSeek's."""
    told: object = given.prompt_tokens_details.cached_tokens if given.prompt_tokens_details else None
    if told is None:
        told = (given.model_extra or {}).get("prompt_cache_hit_tokens")
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else None


def _about(messages: Sequence[tuple[str, str]], options: Generation) -> int:
    """Tokens of question and answer, by length: good enough to be corrected by what the service counts."""
    asked = sum(len(text) // 4 + 1 if text.isascii() else len(text) for _, text in messages)
    return asked + min(options.max_tokens or ANSWER_TOKENS, ANSWER_TOKENS)
