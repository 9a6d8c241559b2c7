"""openai-python's calls for audio, images and moderations, sync and async, unmodified."""

import io
import wave
from base64 import b64decode
from collections.abc import AsyncIterator

import openai
import pytest
from tests.support.media_upstream import HEARD, PICTURE, SPOKEN

from .media import KEY, PIECES, SOUND, Media
from .openais import Sdk, python_sdk

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")]


@pytest.fixture
async def client(media: Media, kind: str) -> AsyncIterator[Sdk]:
    async with python_sdk(kind, media.base_url, api_key=KEY) as sdk:
        yield sdk


# ---- simulated ----------


async def test_a_transcription_in_each_format(client: Sdk) -> None:
    call, file = "audio.transcriptions.create", ("talk.wav", SOUND, "audio/wav")
    told = await client.call(call, model="sim", file=file)
    assert "simulated answer" in told.text
    assert told.usage.type == "duration"
    verbose = await client.call(
        call,
        model="sim",
        file=file,
        response_format="verbose_json",
        timestamp_granularities=["segment", "word"],
    )
    assert verbose.text == " ".join(segment.text for segment in verbose.segments)
    assert verbose.duration > 0
    text = await client.call(call, model="sim", file=file, response_format="text")
    assert "simulated answer" in text
    assert text.endswith("\n")
    srt = await client.call(call, model="sim", file=file, response_format="srt")
    assert srt.startswith("1\n00:00:00,000 --> 00:00:0")
    vtt = await client.call(call, model="sim", file=file, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> ")


async def test_a_transcription_streams_its_text(client: Sdk) -> None:
    events = await client.chunks("audio.transcriptions.create", model="sim", file=("a.wav", SOUND))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done"
    assert "".join(deltas) == events[-1].text
    assert "simulated answer" in events[-1].text


async def test_a_translation(client: Sdk) -> None:
    told = await client.call("audio.translations.create", model="sim", file=io.BytesIO(SOUND))
    assert "simulated answer" in told.text


async def test_speech_is_audio(client: Sdk) -> None:
    spoken = await client.call(
        "audio.speech.create", model="sim", voice="alloy", input="three small words", response_format="wav"
    )
    assert spoken.response.headers["content-type"] == "audio/wav"
    with wave.open(io.BytesIO(spoken.content)) as sound:
        assert sound.getnframes() / sound.getframerate() == pytest.approx(0.1)
    mp3 = await client.call("audio.speech.create", model="sim", voice="alloy", input="word")
    assert mp3.response.headers["content-type"] == "audio/mpeg"
    assert mp3.content.startswith(b"\xff\xf3")


async def test_images_of_all_three_calls(client: Sdk) -> None:
    made = await client.call("images.generate", model="sim", prompt="a lane", n=2, size="64x32")
    assert [b64decode(image.b64_json)[:8] for image in made.data] == [b"\x89PNG\r\n\x1a\n"] * 2
    assert (made.size, made.usage.output_tokens) == ("1x1", 2112)
    first = ("a.png", b64decode(made.data[0].b64_json), "image/png")
    edited = await client.call("images.edit", model="sim", prompt="wider", image=[first, first], mask=first)
    assert len(edited.data) == 1
    varied = await client.call("images.create_variation", model="sim", image=first, n=3)
    assert len(varied.data) == 3


async def test_a_moderation_names_no_model(client: Sdk) -> None:
    told = await client.call("moderations.create", input=["kind words", "This is vile"])
    assert told.model == "omni-moderation-latest"
    assert [result.flagged for result in told.results] == [False, True]
    assert told.results[1].categories.harassment is True
    assert told.results[0].category_scores.hate_threatening < 0.5


# ---- handlers of one's own ----------


async def test_bytes_in_odd_pieces_come_together_again(media: Media, client: Sdk) -> None:
    for model in ("pieces", "whole"):
        spoken = await client.call("audio.speech.create", model=model, voice="v", input="hi", speed=1.5)
        assert spoken.content == b"".join(PIECES)
    assert [(asked.input, asked.speed) for asked in media.seen] == [("hi", 1.5)] * 2


async def test_what_was_uploaded_reaches_the_handler(media: Media, client: Sdk) -> None:
    told = await client.call(
        "audio.transcriptions.create",
        model="ear",
        file=('my "talk".wav', SOUND, "audio/wav"),
        language="de",
        temperature=0.25,
        timestamp_granularities=["word"],
        extra_body={"note": "ü"},
    )
    assert told.text == "One two drüi"
    assert (told.usage.type, told.usage.seconds) == ("duration", 2.5)
    (heard,) = media.seen
    assert heard.file.data == SOUND
    assert (heard.file.filename, heard.file.content_type) == ('my "talk".wav', "audio/wav")
    assert (heard.language, heard.temperature, heard.timestamp_granularities) == ("de", 0.25, ["word"])


async def test_a_streamed_image_is_one_event(client: Sdk) -> None:
    (event,) = await client.chunks("images.generate", model="painter", prompt="a queue", partial_images=1)
    assert (event.type, b64decode(event.b64_json)) == ("image_generation.completed", b"WHOLE")
    assert (event.quality, event.usage.output_tokens) == ("low", 100)


# ---- behind the adapter ----------


async def test_a_server_behind_the_adapter_gets_what_openai_would(media: Media, client: Sdk) -> None:
    file, arrived = ("talk.mp3", SOUND, "audio/mpeg"), ("talk.mp3", "audio/mpeg", SOUND)
    told = await client.call(
        "audio.transcriptions.create",
        model="far",
        file=file,
        temperature=0.5,
        timestamp_granularities=["word", "segment"],
        chunking_strategy={"type": "server_vad", "threshold": 0.5},
    )
    assert (told.text, told.usage.seconds) == ("".join(HEARD), 7.5)
    assert media.upstream.seen.pop() == (
        "/audio/transcriptions",
        {
            "model": "theirs",
            "file": arrived,
            "temperature": "0.5",
            "timestamp_granularities[]": ["word", "segment"],
            "chunking_strategy[type]": "server_vad",
            "chunking_strategy[threshold]": "0.5",
        },
    )
    srt = await client.call("audio.translations.create", model="far", file=file, response_format="srt")
    assert srt == f"srt: {''.join(HEARD)}\n"
    assert media.upstream.seen.pop()[0] == "/audio/translations"
    events = await client.chunks("audio.transcriptions.create", model="far", file=file)
    assert [event.delta for event in events[:-1]] == HEARD or "".join(
        event.delta for event in events[:-1]
    ) == "".join(HEARD)
    assert events[-1].usage.input_tokens == 14
    spoken = await client.call(
        "audio.speech.create", model="far", voice="ash", input="hi", instructions="calm"
    )
    assert spoken.content == b"".join(SPOKEN)
    assert media.upstream.seen.pop() == (
        "/audio/speech",
        {"model": "theirs", "voice": "ash", "input": "hi", "instructions": "calm"},
    )
    made = await client.call("images.generate", model="far", prompt="a lane", size="1024x1024")
    assert (b64decode(made.data[0].b64_json), made.usage.input_tokens_details.text_tokens) == (PICTURE, 9)
    image = ("a.png", PICTURE, "image/png")
    await client.call("images.edit", model="far", prompt="wider", image=[image, image], mask=image, n=1)
    path, fields = media.upstream.seen.pop()
    assert path == "/images/edits"
    arrived = ("a.png", "image/png", PICTURE)
    assert fields.pop("image[]") == [arrived, arrived]
    assert fields == {"model": "theirs", "prompt": "wider", "mask": arrived, "n": "1"}
    moderated = await client.call("moderations.create", model="far", input="hm")
    assert (moderated.id, moderated.results[0].flagged) == ("modr-theirs", True)


async def test_a_refusal_of_that_server_has_its_status(client: Sdk) -> None:
    with pytest.raises(openai.BadRequestError, match="no such language") as caught:
        await client.call("audio.transcriptions.create", model="far", file=("a", SOUND), language="xx")
    assert caught.value.code == "BAD_REQUEST"


# ---- who does not ----------


async def test_a_model_that_does_not_offer_the_type_is_a_404_that_says_so(client: Sdk) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.call("audio.speech.create", model="chat-only", voice="v", input="hi")
    assert caught.value.code == "TYPE_NOT_OFFERED"
    assert "doesn't support speech" in caught.value.message
    assert "openaiSpeech" in caught.value.message
    with pytest.raises(openai.NotFoundError) as caught:
        await client.call("audio.transcriptions.create", model="pieces", file=("a", b"x"))
    assert caught.value.code == "TYPE_NOT_OFFERED"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.call("audio.speech.create", model="nobody-knows", voice="v", input="hi")
    assert caught.value.code == "model_not_found"
