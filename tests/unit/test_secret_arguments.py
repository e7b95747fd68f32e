"""Secret arguments: marked, wrapped, encrypted with rotating keys, and hidden in every text."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from cryptography.fernet import Fernet

from pgworkers import App, ArgumentError, Secret, UsageError
from pgworkers.crypto import FernetCipher
from pgworkers.errors import StoredArgumentsError
from pgworkers.observe.log_messages import show_call
from pgworkers.secret_arguments import (
    HIDDEN_TEXT,
    SecretCipher,
    hide_secrets,
    hide_secrets_in_json,
    scrub,
)

LIMIT = 1 << 20
TOKEN = "tok-4711-geheim"
OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr
    spare: list[pydantic.SecretStr] = []


def make_app(cipher: SecretCipher | None = None) -> App:
    app = App(dsn="postgresql://nowhere.invalid/x", secret_cipher=cipher)
    app.queue("default")
    return app


def declare_charge(app: App) -> Any:
    @app.task(secret=["pin"])
    def charge(
        order: int, token: Annotated[str, Secret()], pin: int = 0, login: Login | None = None
    ) -> None: ...

    return charge


def stored(task: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(task.arguments.encode(args, kwargs, limit=LIMIT))
    return found


def called(task: Any, args: dict[str, Any]) -> dict[str, Any]:
    _, kwargs = task.arguments.decode(msgspec.json.encode(args))
    found: dict[str, Any] = kwargs
    return found


def test_a_secret_is_wrapped_in_storage_and_plain_in_the_handler() -> None:
    charge = declare_charge(make_app())
    login = Login(user="anna", password="hunter22", spare=["first-one", "second-one"])
    args = stored(charge, 7, TOKEN, pin=123456, login=login)
    assert args == {
        "order": 7,
        "token": {"$secret": TOKEN},
        "pin": {"$secret": 123456},
        "login": {"$secret": {"user": "anna", "password": "hunter22", "spare": ["first-one", "second-one"]}},
    }
    assert called(charge, args) == {"order": 7, "token": TOKEN, "pin": 123456, "login": login}
    assert charge.to_spec().secret == ("token", "pin", "login")


def test_plain_values_of_other_programs_are_accepted() -> None:
    charge = declare_charge(make_app(FernetCipher([NEW])))
    assert called(charge, {"order": 7, "token": TOKEN}) == {"order": 7, "token": TOKEN}
    assert called(charge, {"order": 7, "token": {"$secret": TOKEN}}) == {"order": 7, "token": TOKEN}


def test_a_secret_is_encrypted_and_its_keys_can_be_rotated() -> None:
    before = declare_charge(make_app(FernetCipher([OLD])))
    args = stored(before, 7, TOKEN)
    assert TOKEN not in json.dumps(args)
    assert set(args["token"]["$secret"]) == {"$encrypted"}
    rotating = declare_charge(make_app(FernetCipher([NEW, OLD])))
    assert called(rotating, args)["token"] == TOKEN
    newer = stored(rotating, 7, TOKEN)
    after = declare_charge(make_app(FernetCipher([NEW])))
    assert called(after, newer)["token"] == TOKEN
    with pytest.raises(StoredArgumentsError, match="argument token: it cannot be decrypted"):
        called(after, args)
    with pytest.raises(StoredArgumentsError, match="this app has no secret_cipher"):
        called(declare_charge(make_app()), args)


def test_an_encrypted_value_cannot_be_moved_or_changed() -> None:
    app = make_app(FernetCipher([NEW]))
    charge = declare_charge(app)

    @app.task
    def publish(token: Annotated[str, Secret()]) -> None: ...

    args = stored(charge, 7, TOKEN)
    with pytest.raises(StoredArgumentsError, match="encrypted for another task or parameter"):
        called(publish, {"token": args["token"]})
    text = args["token"]["$secret"]["$encrypted"]
    for forged in (text[:-4] + "AAA=", "", "x", 7, None):
        with pytest.raises(StoredArgumentsError, match="argument token") as caught:
            called(charge, {"order": 7, "token": {"$secret": {"$encrypted": forged}}})
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("value", [3, None, ["x"], {"$secret": 1}])
def test_an_error_about_a_secret_does_not_show_it(value: Any) -> None:
    charge = declare_charge(make_app())
    with pytest.raises(ArgumentError, match="argument token: the secret value does not fit its annotation"):
        stored(charge, 7, value)


def test_errors_that_would_quote_the_value_do_not() -> None:
    app = make_app()

    @app.task
    def work(mode: Annotated[Literal["on", "off"], Secret()], model: Login | None = None) -> None: ...

    with pytest.raises(ArgumentError) as caught:
        stored(work, TOKEN)
    assert TOKEN not in str(caught.value)
    with pytest.raises(ArgumentError) as caught:
        stored(work, "on", {"user": "x", "password": {TOKEN: 1}})
    assert TOKEN not in str(caught.value)
    with pytest.raises(ArgumentError) as caught:
        stored(work, f"{TOKEN}\0")
    assert TOKEN not in str(caught.value)


def test_a_default_that_is_secret_is_not_in_the_signature() -> None:
    app = make_app()

    @app.task
    def work(token: Annotated[str, Secret()] = TOKEN, other: str = "seen") -> None: ...

    text = work.to_spec().signature
    assert text == "(token: str = …, other: str = 'seen')"


def test_declarations_that_cannot_work_are_refused() -> None:
    app = make_app()
    with pytest.raises(UsageError, match="secret='tokn' is not one of its parameters"):

        @app.task(secret=["tokn"])
        def a(token: str) -> None: ...

    with pytest.raises(UsageError, match="is not a list of parameters"):

        @app.task(secret="token")
        def b(token: str) -> None: ...

    with pytest.raises(UsageError, match="give the secret a parameter of its own"):

        @app.task
        def c(*tokens: Annotated[str, Secret()]) -> None: ...

    with pytest.raises(UsageError, match="a result cannot be secret"):

        @app.task
        def d() -> Annotated[str, Secret()]: ...

    with pytest.raises(UsageError, match="a result cannot be secret"):

        @app.task
        def e() -> Login: ...

    with pytest.raises(UsageError, match="give an object with encrypt and decrypt"):
        make_app(cipher=NEW)  # type: ignore[arg-type]
    for keys in ([], ["short"], [3]):
        with pytest.raises(UsageError, match="FernetCipher"):
            FernetCipher(keys)  # type: ignore[arg-type]
    assert NEW not in repr(FernetCipher([NEW]))


def test_a_model_with_a_secret_in_an_unannotated_parameter_is_refused_not_masked() -> None:
    app = make_app()

    @app.task
    def work(what: Any) -> None: ...

    with pytest.raises(ArgumentError, match="annotate the parameter with the model"):
        stored(work, Login(user="anna", password="hunter22"))


def test_every_text_of_a_call_hides_it() -> None:
    charge = declare_charge(make_app())
    prepared = charge.prepare(7, TOKEN, pin=123456)
    assert TOKEN not in repr(prepared)
    assert "123456" not in repr(prepared)
    text = prepared.job.args_json
    assert json.loads(hide_secrets_in_json(text)) == {"order": 7, "token": HIDDEN_TEXT, "pin": HIDDEN_TEXT}
    plain = json.dumps({"order": 7, "token": TOKEN})
    assert hide_secrets_in_json(plain) == plain
    assert show_call("charge", hide_secrets_in_json(plain, ["token"])) == 'charge(order=7, token="[secret]")'
    escaped = '{"\\u0074oken":"' + TOKEN + '"}'
    assert TOKEN not in hide_secrets_in_json(escaped, ["token"])
    assert hide_secrets_in_json('{"token":', ["token"]) == ""
    assert hide_secrets("unreadable") == "unreadable"
    assert hide_secrets({"a": {"$secret": 1, "b": 2}}) == {"a": {"$secret": 1, "b": 2}}


def test_texts_of_an_attempt_are_scrubbed() -> None:
    charge = declare_charge(make_app(FernetCipher([NEW])))
    login = Login(user="anna", password='hun"ter\n22-second-line', spare=["abc"])
    args = charge.arguments.encode((7, TOKEN), {"pin": 123456, "login": login}, limit=LIMIT)
    secrets = charge.arguments.secret_texts(args)
    assert TOKEN in secrets
    assert "abc" not in secrets, "too short: it would match by chance"
    password = login.password.get_secret_value()
    text = f"401 for https://x/?token={TOKEN}&pin=123456 {password!r} {json.dumps(password)} 22-second-line"
    found = scrub(text, secrets)
    assert found is not None
    for part in (TOKEN, "123456", "hun", "second-line"):
        assert part not in found
    assert scrub(None, secrets) is None
    assert charge.arguments.secret_texts(b"not json") == []
