"""Maps errors of boto3 to DeployError. A separate module, since boto3 is optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from boto3.exceptions import S3UploadFailedError
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from inflight.deploy.errors import DeployError
from inflight.deploy.publish.s3_address import S3Address

_ABSENT = {"NoSuchBucket"}
_DENIED = {
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "Forbidden",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "403",
}
_CREDENTIALS = "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


@contextmanager
def map_s3_errors(address: S3Address) -> Iterator[None]:
    """Convert boto3's errors to DeployError: `storage_denied`, `storage_not_found`, `storage_unreachable`."""
    try:
        yield
    except S3UploadFailedError as error:
        # The server's answer is only in the error's text and its context.
        if isinstance(error.__context__, ClientError):
            raise _from_client_error(error.__context__, address) from error
        raise DeployError(f"S3 did not take {address} ({_words(error)}); try again.", "storage_unreachable") from error
    except ClientError as error:
        raise _from_client_error(error, address) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise DeployError(
            f"There are no credentials for {address} ({_words(error)}); {_CREDENTIALS}.", "storage_denied"
        ) from error
    except BotoCoreError as error:
        where = address.endpoint or "AWS"
        raise DeployError(
            f"{where} can't be reached for {address} ({_words(error)}); check the endpoint and the network.",
            "storage_unreachable",
        ) from error


def _from_client_error(error: ClientError, address: S3Address) -> DeployError:
    details = error.response.get("Error", {})
    code, words = details.get("Code", ""), details.get("Message", "")
    if code in _ABSENT:
        return DeployError(
            f"There is no bucket {address.bucket!r} for {address}; create it, or name another.", "storage_not_found"
        )
    if code in _DENIED:
        return DeployError(
            f"S3 refuses access to {address} ({code}: {words}); {_CREDENTIALS} of an account that may list, read and"
            " write there.",
            "storage_denied",
        )
    return DeployError(f"S3 can't serve {address} ({code}: {words}); try again later.", "storage_unreachable")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
